mod authorization;
mod calls;
mod concurrency_limit;
mod control;
mod deadlines;
mod drain;
#[path = "../../../protocol/headers/src/orca.rs"]
pub(crate) mod orca;
mod parent_calls;
mod registration;
mod shards;

use fairmesh_headers::OUTSTANDING;
