//! `Debug` for types whose fields are sockets, buffers and timers. It prints only the type's name, since the fields
//! would tell a reader nothing.

use std::fmt;

use crate::{
    AddressPool, BorrowedExchange, BorrowedOutcome, EndpointPool, EndpointResponse, H1Body, H2Body, Head,
    OwnedConnection, PooledTimer, RawConnection, Replay, Request, RequestBody, SharedConnection,
};

macro_rules! debug_by_name {
    ($($name:ident $(<$parameter:ident>)?),* $(,)?) => {
        $(
            impl$(<$parameter>)? fmt::Debug for $name$(<$parameter>)? {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.debug_struct(stringify!($name)).finish_non_exhaustive()
                }
            }
        )*
    };
}

debug_by_name! {
    AddressPool, BorrowedExchange, BorrowedOutcome<T>, EndpointPool, EndpointResponse, H1Body<I>, H2Body, Head,
    OwnedConnection, PooledTimer, RawConnection<I>, Replay, Request, RequestBody, SharedConnection,
}
