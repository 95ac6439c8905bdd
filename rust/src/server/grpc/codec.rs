//! Reads and writes the messages of an RPC with prost.
//!
//! In:     requests, answers.
//! Out:    a codec for tonic.
//! Always: buffers begin small, because a held receive and an idle stream have one each.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::BufferSettings;
use tonic_prost::{ProstDecoder, ProstEncoder};

/// The bytes with which a buffer begins.
const BUFFER_BYTES: usize = 512;
/// The encoded bytes after which an answer is passed on.
const PASSED_ON: usize = 32 << 10;

/// Encodes answers `A` and decodes requests `Q`.
pub(super) struct Codec<A, Q>(PhantomData<(A, Q)>);

impl<A, Q> Default for Codec<A, Q> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<A: Message + 'static, Q: Message + Default + 'static> tonic::codec::Codec for Codec<A, Q> {
    type Encode = A;
    type Decode = Q;
    type Encoder = ProstEncoder<A>;
    type Decoder = ProstDecoder<Q>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER_BYTES, PASSED_ON))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(BUFFER_BYTES, PASSED_ON))
    }
}
