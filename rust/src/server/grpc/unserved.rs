//! Refuses the RPCs that are not served: light topics, and the calls of pull consumers, which no official client has.
//!
//! In:     any such request.
//! Out:    `NOT_IMPLEMENTED`.

use super::call::Call;
use super::status::{self, Refused};
use super::wire::{UnservedRequest, UnservedResponse};

#[allow(clippy::unused_async)] // The router awaits every handler.
pub(super) async fn unserved(_: Call, _: UnservedRequest) -> Result<UnservedResponse, Refused> {
    Err(Refused::new(status::NOT_IMPLEMENTED, "this request is not served"))
}
