mod connection;
mod differential;
mod offload;
mod upgrade;
