//! Turns records into the state of each service, from which calls are decided.
//!
//! A [`Resolver`] keeps one [`Subscription`] per service. It follows the service's records and publishes a compiled
//! [`ServiceState`] whenever they change.

mod endpoint_transport;
mod readiness;
mod region_table_age;
mod resolver;
mod retry_budget;
mod route_backends;
mod service_state;
mod subscription;

pub use endpoint_transport::EndpointTransport;
pub use readiness::state_fault;
pub(crate) use readiness::{DEFAULT_READY_TIMEOUT, unknown_state_fault, wait_ready};
pub use resolver::{DEFAULT_IDLE_TIMEOUT, Resolver, ResolverConfig};
pub use retry_budget::RetryBudget;
pub use route_backends::{RouteBackend, RouteBackendIndex};
pub use service_state::{ReadyService, ServiceState};
pub use subscription::Subscription;
