//! Outages of whole machines and of what they share, as real processes in network namespaces, while writers write, watchers
//! watch and programs call. Everything that was seen is checked as one history.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod checker;
