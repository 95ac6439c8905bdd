//! Memory: files that lose, tear, and refuse at the n-th call.
