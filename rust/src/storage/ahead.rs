//! Prefetches bytes of a map that will be read soon, without waiting for them.
//!
//! In:     bytes, and which of them.
//! Out:    nothing. On other machines it has no effect.
//! Not here: the disk, which the kernel reads ahead by itself.
#![allow(unsafe_code)] // The processor's instruction has no safe form.

use std::ops::Range;

const LINE: usize = 64;

/// Prefetches the cache lines of a range, which may reach past the bytes.
#[inline]
pub fn ask_for(bytes: &[u8], range: Range<usize>) {
    #[cfg(target_arch = "x86_64")]
    for at in range.step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch neither reads nor writes for the program, and no address makes it fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, range, LINE);
}
