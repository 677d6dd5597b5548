mod client;
mod differential;
mod server;
mod wakeups;
mod wire;
