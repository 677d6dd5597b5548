//! The same messages, whichever listeners are on the way: what a program sees and what its client gets do not depend on the form.

mod caller;
mod forms;
mod messages;
mod program;
mod tunnels;
