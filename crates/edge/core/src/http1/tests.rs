mod connection;
mod differential;
mod upgrade;
