//! The parts that all kinds of proxies share: they accept connections of programs, and forward the requests
//! as calls of the library.
//!
//! [`server`] accepts connections and terminates [`tls`]. `http1` and `http2` parse requests. [`forward`]
//! looks up the service of each request in the table of [`services`] and sends the request with the library:
//! with the same records, picks and retries as a program that links the library. The proxy adds the duties of
//! an intermediary: it strips hop-by-hop headers, turns faults into responses, and detects loops. [`tunnel`]
//! carries connections without messages, [`observe`] logs, counts and traces requests, [`shutdown`] ends
//! connections without losing requests, and [`lifecycle`] starts and stops a process, which may hand its
//! listeners to a successor.
//!
//! The crate knows no kind of proxy. A proxy on top of it opens the listening sockets, decides which configuration and pages it has, and says
//! by an [`Origin`](forward::connection_origin::Origin) where connections come from and what they may reach. Origins are type parameters: an enum of all
//! kinds was rejected, since this crate would have to name them, and trait objects were, since each request would pay for them.

pub mod counter;
pub mod forward;
#[doc(hidden)]
pub mod fuzzing;
pub mod http1;
mod http2;
pub mod lifecycle;
pub mod limits;
pub mod listen;
pub mod metrics;
pub mod observe;
pub mod server;
pub mod services;
pub mod shutdown;
pub mod tls;
pub mod tunnel;
