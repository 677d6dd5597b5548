//! Requests sent by the kernel: the eBPF programs of `bpf/`, their attachment to cgroups, and the maps shared with the proxy.
//!
//! The crate lies beneath `proxy` and contains no HTTP; with the mesh it shares only the numbers of a pick. clang compiles the
//! programs when this crate is built, and the binary contains them. Programs and maps are pinned in a BPF file system, so that
//! they outlive the command that attached them and the proxy. libbpf was rejected: it brings libelf (LGPL) and zlib, while aya
//! needs no C library.

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
