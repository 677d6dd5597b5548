mod differential;
mod frames;
