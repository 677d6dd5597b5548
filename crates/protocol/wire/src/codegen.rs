//! Replacements for the tonic items that generated code refers to, without the crates that only gRPC servers need.

use std::{error::Error, marker::PhantomData};

use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

#[cfg(feature = "server")]
pub(crate) use tonic::codegen::*;
#[cfg(not(feature = "server"))]
pub(crate) use {
    bytes::Bytes,
    http,
    http_body::Body,
    tonic::{GrpcMethod, codec::CompressionEncoding, service::interceptor::InterceptedService},
    tower_service::Service,
};

#[cfg(not(feature = "server"))]
pub(crate) type StdError = Box<dyn Error + Send + Sync>;

/// Codec for gRPC messages in protobuf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProstCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for ProstCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for ProstCodec<T, U>
where
    T: Message + 'static,
    U: Message + Default + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<T: Message, U> Encoder for ProstCodec<T, U> {
    type Item = T;
    type Error = tonic::Status;

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        message.encode(buffer).map_err(|error| internal(&error))
    }
}

impl<T, U: Message + Default> Decoder for ProstCodec<T, U> {
    type Item = U;
    type Error = tonic::Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, tonic::Status> {
        U::decode(buffer).map(Some).map_err(|error| internal(&error))
    }
}

fn internal(error: &dyn Error) -> tonic::Status {
    tonic::Status::internal(error.to_string())
}
