mod connection;
mod differential;
mod switch;
