//! The data caches of the processor that the compiler runs on: leaf 4 of `cpuid`, or leaf 0x8000001D, which has the same form
//! where a processor has no leaf 4 (Intel's manual, volume 2, CPUID; AMD's, volume 3, appendix E.4.15).

/// Caches of one core. The first level is set associative: lines whose addresses differ by a multiple of
/// `l1_bytes / l1_ways` share `l1_ways` places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Caches {
    pub l1_bytes: usize,
    pub l1_ways: usize,
    pub l2_bytes: usize,
}

impl Caches {
    /// From EAX, EBX and ECX of the leaf for cache number 0, 1 and so on; `None` where it does not list both levels.
    #[cfg(any(test, target_arch = "x86_64"))]
    fn listed(cache: &dyn Fn(u32) -> [u32; 3]) -> Option<Caches> {
        /// Types in bits 0 to 4 of EAX: no further cache, one of data, one of all.
        const END: u32 = 0;
        const DATA: u32 = 1;
        const UNIFIED: u32 = 3;
        /// More caches than any processor lists.
        const MOST: u32 = 16;
        let (mut first, mut second) = (None, None);
        for [eax, ebx, ecx] in (0..MOST).map(cache).take_while(|[eax, ..]| eax & 0x1f != END) {
            let (kind, level) = (eax & 0x1f, eax >> 5 & 7);
            let field = |low: u32, bits: u32| (ebx >> low & ((1 << bits) - 1)) as usize + 1;
            let (line, partitions, ways) = (field(0, 12), field(12, 10), field(22, 10));
            let bytes = ways * partitions * line * (ecx as usize + 1);
            match (kind, level) {
                (DATA | UNIFIED, 1) => first = Some((bytes, ways)),
                (DATA | UNIFIED, 2) => second = Some(bytes),
                _ => {}
            }
        }
        let ((l1_bytes, l1_ways), l2_bytes) = first.zip(second)?;
        Some(Caches { l1_bytes, l1_ways, l2_bytes })
    }

    /// Those of the host.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn of_host() -> Option<Caches> {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        /// The leaf that lists the caches of AMD's processors, and the bit of leaf 0x80000001 that says so.
        const EXTENDED: u32 = 0x8000_001d;
        const HAS_EXTENDED: u32 = 1 << 22;
        let leaf = |number: u32| {
            move |cache: u32| {
                let found = __cpuid_count(number, cache);
                [found.eax, found.ebx, found.ecx]
            }
        };
        let plain = || (__cpuid(0).eax >= 4).then(|| Caches::listed(&leaf(4))).flatten();
        let has_extended =
            || __cpuid(0x8000_0000).eax >= EXTENDED && __cpuid(0x8000_0001).ecx & HAS_EXTENDED != 0;
        plain().or_else(|| has_extended().then(|| Caches::listed(&leaf(EXTENDED))).flatten())
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn of_host() -> Option<Caches> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(caches: &[[u32; 3]]) -> Option<Caches> {
        Caches::listed(&|number| caches.get(number as usize).copied().unwrap_or([0; 3]))
    }

    #[test]
    fn registers_of_real_processors_are_read() {
        // Zen 3, leaf 0x8000001D: data, instructions, second level, third level.
        let zen3 = [
            [0x0000_4121, 0x01c0_003f, 0x0000_003f],
            [0x0000_4122, 0x01c0_003f, 0x0000_003f],
            [0x0000_4143, 0x01c0_003f, 0x0000_03ff],
            [0x0003_c163, 0x03c0_003f, 0x0000_7fff],
        ];
        let wanted = Caches { l1_bytes: 32 << 10, l1_ways: 8, l2_bytes: 512 << 10 };
        assert_eq!(listed(&zen3), Some(wanted));
        // Sapphire Rapids, leaf 4.
        let sapphire_rapids = [
            [0x7c00_4121, 0x02c0_003f, 0x0000_003f],
            [0x7c00_4122, 0x01c0_003f, 0x0000_003f],
            [0x7c00_4143, 0x03c0_003f, 0x0000_07ff],
        ];
        let wanted = Caches { l1_bytes: 48 << 10, l1_ways: 12, l2_bytes: 2 << 20 };
        assert_eq!(listed(&sapphire_rapids), Some(wanted));
    }

    #[test]
    fn processors_that_list_no_caches_are_known_to() {
        assert_eq!(listed(&[]), None);
        assert_eq!(listed(&[[0x0000_4121, 0x01c0_003f, 0x0000_003f]]), None);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn this_processor_has_plausible_caches() {
        if let Some(Caches { l1_bytes, l1_ways, l2_bytes }) = Caches::of_host() {
            assert!((8 << 10..=256 << 10).contains(&l1_bytes), "{l1_bytes}");
            assert!(l1_bytes.is_multiple_of(l1_ways) && l2_bytes > l1_bytes, "{l1_ways} {l2_bytes}");
        }
    }
}
