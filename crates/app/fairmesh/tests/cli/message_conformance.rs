//! The program and its client see the same messages, whichever listeners are between them.

mod caller;
mod forms;
mod messages;
mod program;
mod tunnels;
