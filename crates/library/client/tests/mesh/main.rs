//! Calls over real sockets, with a RIB server, scripted HTTP servers and a mesh between them.

#[cfg(test)]
mod basics;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod fixed;
#[cfg(test)]
mod grpc;
#[cfg(test)]
mod load;
#[cfg(test)]
mod outage;
#[cfg(test)]
mod overload;
#[cfg(test)]
mod own_lookaside;
#[cfg(test)]
mod plain;
#[cfg(test)]
mod policy;
#[cfg(test)]
mod poll;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod route_targets;
#[cfg(test)]
mod server;
#[cfg(test)]
mod spans;
#[cfg(test)]
mod timeouts;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod tunnels;
#[cfg(test)]
mod wiring;
