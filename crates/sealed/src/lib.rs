//! Memory that one process of a machine makes, others read where it lies, and nobody can change any more; and the socket
//! that hands it over. It sits beneath the agent and the client and knows nothing of what is in it.
//!
//! It is an anonymous file in memory (`memfd_create`) that is sealed: the kernel refuses to write, shrink or grow it, to its
//! maker too. A file in a folder that all map was rejected: whoever may write there can cut it short, and a reader that
//! touches what is gone is killed by the system. As long as one process maps it, it stays; when the last one lets go, the
//! kernel frees it, however that process ended.

mod channel;
mod heap;
mod memory;

pub use channel::{Channel, MAX_FRAME, MAX_HANDLES};
pub use heap::trim;
pub use memory::{NotSealed, Sealed};
