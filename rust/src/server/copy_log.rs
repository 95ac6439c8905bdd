//! Passes the log on to replicas, and lets clients wait for their copies.
//!
//! In:     requests of replicas: how far each one's copy goes, and from where it wants more; answers to clients.
//! Out:    bytes of the log; answers that say whether the required number of copies exists (otherwise code 12).
//! Always: a request is held until there are bytes. It never waits for Python.
//! Not here: which copies count (`copies`).

use std::time::Duration;

use super::copies::Copies;
use super::fields::{Refusal, number, number_or, text};
use super::service::Service;
use crate::base::mutant::{Mutant, mutated};
use crate::base::units::{PhysicalOffset, to_usize};
use crate::remoting::codes::response;
use crate::remoting::command::Command;
use crate::store::Store;

/// The most bytes of the log in one answer.
const PIECE_MAX: u64 = 4 << 20;
/// The longest time that a request of a replica is held, in milliseconds.
const HELD_MAX_MS: u64 = 15_000;
/// How long a request is held after readers may see more, because bytes may follow soon.
const VISIBLE_AFTER: Duration = Duration::from_millis(20);
/// The most replicas of a store: with the source, three nodes.
const NODES_MAX: usize = 2;

/// Waits for the copies of everything that the store has now. Fails with `FLUSH_SLAVE_TIMEOUT` without them.
pub(super) async fn wait_for_copies(service: &Service) -> Result<(), Refusal> {
    let rules = service.copies.rules;
    if rules.required < 2 {
        return Ok(());
    }
    let end = service.store.appended_end();
    if rules.durable {
        service.durable.sync(end).await?;
    }
    if service.copies.wait(&service.store, end).await {
        return Ok(());
    }
    let remark = format!(
        "stored, but {} copies are not there after {} ms: it becomes visible when they are",
        rules.required,
        rules.timeout.as_millis()
    );
    Err(Refusal::new(response::FLUSH_SLAVE_TIMEOUT, remark))
}

/// Answers a replica with the bytes that it lacks, as soon as there are any.
pub(super) async fn copy(service: &Service, request: &Command) -> Result<Command, Refusal> {
    let (copies, store) = (&service.copies, &service.store);
    let from: u64 = number(request, "offset")?;
    let seen: u64 = number_or(request, "visible", 0)?;
    let bytes = number_or(request, "bytes", PIECE_MAX)?.clamp(1, PIECE_MAX);
    let held = Duration::from_millis(number_or(request, "heldMillis", 0)?.min(HELD_MAX_MS));
    let first = store.first_physical_offset().0;
    let end = store.copyable_end().0;
    if from < first || from > end {
        let remark = format!("the log has the bytes from {first} to {end}, and none at {from}");
        return Err(Refusal::new(response::PULL_OFFSET_MOVED, remark)
            .with("offset", if from < first { first } else { end }.to_string()));
    }
    let acknowledged = match request.ext_fields.get("acknowledged") {
        Some(_) => Some(number::<u64>(request, "acknowledged")?.min(end)),
        None => None,
    };
    let name = text(request, "replica")?;
    check_epoch(store, request, acknowledged.unwrap_or(0))?;
    note_node(store, name, request.ext_fields.get("address").unwrap_or_default())?;
    let _asking = copies.acknowledge(store, name, acknowledged)?;
    let deadline = tokio::time::sleep(held);
    tokio::pin!(deadline);
    let mut ends = copies.ends.subscribe();
    loop {
        let piece = store.copy_log(PhysicalOffset(from), to_usize(bytes))?;
        let is_over = deadline.is_elapsed() || copies.is_stopped();
        if !piece.is_empty() || is_over {
            return Ok(answer(copies, store, request, piece, first));
        }
        let shows_more = store.visible_end().0 > seen;
        tokio::select! {
            _ = ends.changed() => (),
            () = deadline.as_mut() => (),
            () = tokio::time::sleep(VISIBLE_AFTER), if shows_more => return Ok(answer(copies, store, request, piece, first)),
        }
    }
}

/// Compares the epoch of a replica with this node's. A higher one fences this node. The copy of a replica in another
/// epoch counts for nothing, because the same offset may mean another record there.
fn check_epoch(store: &Store, request: &Command, acknowledged: u64) -> Result<(), Refusal> {
    let own = store.epoch();
    let theirs: u64 = number_or(request, "epoch", own)?;
    if theirs > store.accepted_epoch() && !mutated(Mutant::EpochIgnored) {
        let source = request.ext_fields.get("source").filter(|address| !address.is_empty());
        tokio::task::block_in_place(|| store.accept_epoch(theirs, source))?;
    }
    if theirs == own || acknowledged == 0 {
        return Ok(());
    }
    let remark = format!("this node is in epoch {own}, and the replica in epoch {theirs}");
    Err(Refusal::new(response::SERVICE_NOT_AVAILABLE, remark).with("epoch", own.to_string()))
}

/// Remembers a replica and its address, because each must accept the epoch in which another node becomes the source.
fn note_node(store: &Store, name: &str, address: &str) -> Result<(), Refusal> {
    let nodes = store.nodes();
    if nodes.get(name).is_some_and(|known| known == address) {
        return Ok(());
    }
    if !nodes.contains_key(name) && nodes.len() >= NODES_MAX {
        let known: Vec<_> = nodes.keys().map(String::as_str).collect();
        let remark = format!(
            "{NODES_MAX} replicas at most, and there are {}\nhint: `txstore replica forget` removes one that does not come back",
            known.join(" and ")
        );
        return Err(Refusal::new(response::SYSTEM_BUSY, remark));
    }
    tokio::task::block_in_place(|| store.note_node(name, Some(address)))?;
    Ok(())
}

fn answer(copies: &Copies, store: &Store, request: &Command, piece: Vec<u8>, first: u64) -> Command {
    let mut answer = request.response(response::SUCCESS, None);
    let fields = &mut answer.ext_fields;
    fields.set("minOffset", first.to_string());
    fields.set("maxOffset", store.copyable_end().0.to_string());
    fields.set("visible", store.visible_end().0.to_string());
    fields.set("durable", copies.rules.durable.to_string());
    fields.set("epoch", store.epoch().to_string());
    answer.body = piece;
    answer
}
