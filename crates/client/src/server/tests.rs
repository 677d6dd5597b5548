mod calls;
mod control;
mod drain;
mod registration;
mod shards;
