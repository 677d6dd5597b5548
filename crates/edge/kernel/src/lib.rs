//! Requests sent by the kernel: the eBPF programs of `bpf/`, how they are attached to a cgroup, and the maps by which they and the
//! proxy share connections.
//!
//! It lies beneath `proxy` and contains nothing of HTTP; of the mesh it shares the numbers that a pick is decided from. The programs are compiled by clang when this crate is built
//! and lie in the binary; they and their maps are pinned in a BPF file system, so that neither the command that attached them nor the
//! proxy has to run for as long as they are attached. libbpf was rejected: it brings libelf (LGPL) and zlib along, for which aya needs
//! no C library.

mod attach;
mod blocks;
mod cgroup;
mod completed;
mod destinations;
mod error;
mod forwarding_sockets;
mod free_positions;
mod groups;
mod layout;
mod left_programs;
mod links;
mod looker;
mod mapped;
mod object;
mod pinned_links;
mod pins;
mod policies;
mod probe;
mod sender;
mod slots;
mod status;

pub use attach::{Attachments, Detached, Selection, attach, detach};
pub use cgroup::{enter_cgroup, own_cgroup};
pub use completed::{COMPLETED_AT_ONCE, CompletedCall};
pub use destinations::{Destination, ProxyMaps, own_attachment};
pub use error::KernelError;
pub use layout::{Counter, MAX_REQUEST};
pub use left_programs::left_programs;
pub use links::{Link, Settled};
pub use pins::DEFAULT_PINS;
pub use policies::{ArmTarget, Policy, PolicyKey, PublishedPolicy};
pub use probe::{Check, probe};
pub use sender::KernelSender;
pub use slots::{EndpointSlots, SentRequest, Slot, program_clock};
pub use status::{Attachment, Counters, Status, status};
