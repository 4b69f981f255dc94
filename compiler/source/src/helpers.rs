//! Functions and types that printed code uses: each is in a file once, and only where something needs it.

mod conversions;
pub(crate) mod numbers;
mod vectors;

use std::collections::HashSet;

/// The helpers of a file, in an order in which each stands behind those that it uses.
#[derive(Default)]
pub(crate) struct Helpers {
    known: HashSet<String>,
    text: String,
}

impl Helpers {
    /// Adds a helper unless it is there. `make` asks for those that it needs before it gives the text.
    fn add(&mut self, name: &str, make: impl FnOnce(&mut Helpers) -> String) {
        if !self.known.contains(name) {
            let text = make(self);
            self.known.insert(name.to_string());
            self.text.push_str(text.trim_start_matches('\n'));
            self.text.push('\n');
        }
    }

    /// Adds a helper whose text is fixed.
    fn fixed(&mut self, name: &str, text: &str) {
        self.add(name, |_| text.to_string());
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

/// Type of a vector, and of one that may lie anywhere and be read as anything.
pub(crate) fn vector_name(element: &str, lanes: usize) -> String {
    format!("ox_{element}x{lanes}")
}

/// Bytes of an element by its short name, such as `i16`.
pub(crate) fn element_bytes(element: &str) -> usize {
    match &element[1..] {
        "8" => 1,
        "16" => 2,
        "32" => 4,
        _ => 8,
    }
}

/// The C type of an element by its short name.
pub(crate) fn c_name(element: &str) -> String {
    match element {
        "f32" => "float".into(),
        "f64" => "double".into(),
        _ if element.starts_with('u') => format!("uint{}_t", &element[1..]),
        _ => format!("int{}_t", &element[1..]),
    }
}

/// What every file begins with, behind its comment.
pub(crate) const PRELUDE: &str = r#"#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "onnxc.h"

#if defined(__FAST_MATH__)
#error "compile without -ffast-math: infinities, NaN and signed zeros have meanings here"
#endif
#if defined(__FLT_EVAL_METHOD__) && (__FLT_EVAL_METHOD__ < 0 || __FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2)
#error "floats have to be computed in their own precision: -msse2 -mfpmath=sse on x86"
#endif

/* Memory serves values of any type one after the other: what reads it may alias everything. */
#if defined(__GNUC__)
#define OX_ALIAS __attribute__((may_alias))
#define OX_ALIGNED(bytes) __attribute__((aligned(bytes)))
#define OX_NOINLINE __attribute__((noinline))
#define OX_INLINE static inline __attribute__((always_inline, unused))
#define OX_UNUSED __attribute__((unused))
#define OX_PREFETCH(address) __builtin_prefetch((const void *)(address))
#elif defined(_MSC_VER)
#define OX_ALIAS
#define OX_ALIGNED(bytes) __declspec(align(bytes))
#define OX_NOINLINE __declspec(noinline)
#define OX_INLINE static __forceinline
#define OX_UNUSED
#define OX_PREFETCH(address) ((void)(address))
#else
#define OX_ALIAS
#define OX_ALIGNED(bytes) _Alignas(bytes)
#define OX_NOINLINE
#define OX_INLINE static inline
#define OX_UNUSED
#define OX_PREFETCH(address) ((void)(address))
#endif

typedef float OX_ALIAS ox_f32;
typedef double OX_ALIAS ox_f64;
typedef int8_t OX_ALIAS ox_i8;
typedef int16_t OX_ALIAS ox_i16;
typedef int32_t OX_ALIAS ox_i32;
typedef int64_t OX_ALIAS ox_i64;
typedef uint8_t OX_ALIAS ox_u8;
typedef uint16_t OX_ALIAS ox_u16;
typedef uint32_t OX_ALIAS ox_u32;
typedef uint64_t OX_ALIAS ox_u64;
typedef uintptr_t OX_ALIAS ox_pointer;
"#;
