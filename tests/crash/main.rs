//! Tests crashes and failing disks: at each storage call of a script, and at random moments of random workloads.
//!
//! In:     scripts on storage in memory.
//! Out:    a store that opens again, and a checker that checks all of it.
//! Always: a random test prints its seed, and a run depends only on its seed.
//! Not here: tests of single promises (rust/src/store/tests), real processes (test_*.py).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::as_conversions)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, unreachable_pub, missing_docs)]

mod ages;
mod broker;
mod broker_life;
mod broker_timer;
mod campaign;
mod chance;
mod check;
mod clock;
mod crash;
mod database;
mod delays;
mod exhaustive;
mod hand_over;
mod history;
mod machine;
mod promises;
mod rounds;
mod rule;
mod sets;
mod several;
mod simulation;
mod step;
mod sweep;
mod timed;
mod waits;
mod watched;
mod world;
