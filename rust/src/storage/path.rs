//! Splits and checks paths below the store's directory.
//!
//! In:     a relative path.
//! Out:    its parts, or `None` if it could lead outside.
//! Always: the same rule for every storage.

/// Returns the parts of a path; empty for the directory itself (`""` or `"."`).
#[cfg(all(target_os = "linux", not(txstore_without_disk)))] // Only a disk asks.
pub(super) fn parts(path: &str) -> Option<Vec<&str>> {
    if path.is_empty() || path == "." {
        return Some(Vec::new());
    }
    names_something(path).then(|| path.split('/').collect())
}

/// Returns whether a path is one below the directory.
pub(super) fn names_something(path: &str) -> bool {
    let allowed = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
    path.split('/').all(allowed)
}

/// Splits a path below the directory into the parts of its parent and its own name.
#[cfg(all(target_os = "linux", not(txstore_without_disk)))] // Only a disk asks.
pub(super) fn parent_and_name(path: &str) -> Option<(Vec<&str>, &str)> {
    let mut parts = parts(path)?;
    let name = parts.pop()?;
    Some((parts, name))
}
