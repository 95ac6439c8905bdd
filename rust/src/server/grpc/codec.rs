//! Reads and writes the messages of an RPC with prost.
//!
//! In:     requests, answers.
//! Out:    a codec for tonic.
//! Always: buffers begin small, because a held receive and an idle stream have one each. A request whose parts would
//!         take too much memory is refused before it is decoded; those of an accepted one count for its connection.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Buf;
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use super::link::Held;
use super::shape::{self, PART_COST, Shape};

/// The bytes with which a buffer begins.
const BUFFER_BYTES: usize = 512;
/// The encoded bytes after which an answer is passed on.
const PASSED_ON: usize = 32 << 10;

/// Encodes answers `A` and decodes requests `Q`.
pub(super) struct Codec<A, Q> {
    shape: &'static Shape,
    held: Arc<Held>,
    of: PhantomData<(A, Q)>,
}

/// Decodes requests `Q`.
pub(super) struct Reader<Q> {
    shape: &'static Shape,
    held: Arc<Held>,
    of: PhantomData<Q>,
}

impl<A, Q> Codec<A, Q> {
    /// Creates the codec of an RPC. `held`: the memory of its request.
    pub(super) fn new(rpc: &str, held: &Arc<Held>) -> Self {
        Self { shape: shape::of(rpc), held: Arc::clone(held), of: PhantomData }
    }
}

impl<A: Message + 'static, Q: Message + Default + 'static> tonic::codec::Codec for Codec<A, Q> {
    type Encode = A;
    type Decode = Q;
    type Encoder = ProstEncoder<A>;
    type Decoder = Reader<Q>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER_BYTES, PASSED_ON))
    }

    fn decoder(&mut self) -> Self::Decoder {
        Reader { shape: self.shape, held: Arc::clone(&self.held), of: PhantomData }
    }
}

impl<Q: Message + Default> Decoder for Reader<Q> {
    type Item = Q;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Q>, Status> {
        let bytes = source.copy_to_bytes(source.remaining());
        self.held.add(shape::parts(self.shape, &bytes)? * PART_COST);
        Q::decode(bytes).map(Some).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, PASSED_ON)
    }
}
