mod connection;
mod differential;
