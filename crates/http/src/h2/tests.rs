mod calls;
mod differential;
mod frames;
mod waiting;
mod wire;
