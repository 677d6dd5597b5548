mod calls;
mod control;
mod drain;
mod gate;
mod late;
mod registration;
mod shards;
