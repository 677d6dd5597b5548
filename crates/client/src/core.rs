//! What happens around each try of a call, without a transport.

mod context;

pub use context::CallContext;
