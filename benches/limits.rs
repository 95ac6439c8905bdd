//! Measures what the machine itself can do, with the caller's sizes.
//!
//! In:     `limits pwrite|fdatasync|pread|memcpy --count N --size BYTES --dir FOLDER [--sync-every-ms N]
//!         [--zeros BYTES | --recycled 1]`. `--zeros`: pwrite writes so many zeros ahead at once, as a store does;
//!         `--recycled`: it writes to files that were written before.
//! Out:    one line of JSON.
//! Always: no code of the engine runs.
//! Not here: what is compared with it (`benches/python`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::as_conversions, clippy::cast_precision_loss)]

mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::Pages;

const USAGE: &str = "limits pwrite|fdatasync|pread|memcpy --count N --size BYTES --dir FOLDER [--sync-every-ms N] \
                     [--zeros BYTES | --recycled 1]";

struct Arguments {
    limit: String,
    count: u64,
    size: usize,
    directory: PathBuf,
    sync_every: Option<Duration>,
    pages: Pages,
}

impl Arguments {
    fn read() -> Option<Self> {
        let mut words = std::env::args().skip(1);
        let mut read = Self {
            limit: words.next()?,
            count: 0,
            size: 0,
            directory: PathBuf::new(),
            sync_every: None,
            pages: Pages::Fresh,
        };
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            match name.as_str() {
                "--count" => read.count = value.parse().ok()?,
                "--size" => read.size = value.parse().ok()?,
                "--dir" => read.directory = value.into(),
                "--sync-every-ms" => read.sync_every = Some(Duration::from_millis(value.parse().ok()?)),
                "--zeros" => read.pages = Pages::Zeros(value.parse().ok().filter(|bytes| *bytes > 0)?),
                "--recycled" => read.pages = Pages::Recycled,
                _ => return None,
            }
        }
        (read.count > 0 && read.size > 0 && read.directory.is_dir()).then_some(read)
    }
}

fn main() {
    let arguments = Arguments::read().expect(USAGE);
    let Arguments { count, size, directory, .. } = &arguments;
    let folder = tempfile::Builder::new().prefix("limit-").tempdir_in(directory).unwrap();
    let seconds = match arguments.limit.as_str() {
        "pwrite" => common::write_to(arguments.pages, folder.path(), *count, *size, arguments.sync_every),
        "fdatasync" => common::write_durably(folder.path(), *count, *size).iter().sum(),
        "memcpy" => common::copy_fresh(*count, *size),
        "pread" => common::read_warm(folder.path(), *count, *size),
        _ => panic!("{USAGE}"),
    }
    .as_secs_f64();
    let rate = *count as f64 / seconds;
    println!(r#"{{"count": {count}, "size": {size}, "seconds": {seconds:.6}, "per_second": {rate:.1}}}"#);
}
