//! Responses: their bodies, tunnels, and the attempts that last until they end.

mod attempt_guard;
mod body;
mod observer;
mod source;
mod timeout_conclusion;
mod tunnel;

pub(crate) use self::attempt_guard::AttemptGuard;
pub use self::{
    body::{Body, end_with_status, foreign_body, hide_load_trailers, hold_with_body, observe_body},
    observer::{BodyEnd, BodyObserver},
    tunnel::Tunnel,
};
