//! Tells how much memory this process has.

use std::fs;

/// Returns the bytes of anonymous memory: the heaps and stacks, not maps of files. `None` where the system does not tell.
pub fn anonymous_bytes() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used_memory_counts() -> bool {
        let before = anonymous_bytes().unwrap();
        let used = std::hint::black_box(vec![1_u8; 64 << 20]);
        anonymous_bytes().unwrap() > before + (used.len() >> 1)
    }

    #[test]
    fn memory_that_is_used_counts() {
        // Other tests of this process free memory meanwhile.
        assert!((0..1_000).any(|_| used_memory_counts()));
    }
}
