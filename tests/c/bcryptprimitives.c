/* What Rust's standard library has the seeds of its tables from on Windows, for wine 8, which has no such library. */
#include <windows.h>

#include <ntsecapi.h>

__declspec(dllexport) BOOL ProcessPrng(PBYTE to, SIZE_T bytes) {
    return RtlGenRandom(to, (ULONG)bytes);
}
