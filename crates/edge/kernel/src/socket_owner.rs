//! The cgroup and the user of a socket at the other end of a connection, as the kernel knows them (`sock_diag`). A process cannot
//! claim those of another one, unlike anything that it sends.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recvfrom, send, socket_with,
    },
};

/// `SOCK_DIAG_BY_FAMILY`, the type of requests and responses.
const BY_FAMILY: u16 = 20;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `INET_DIAG_CGROUP_ID`.
const CGROUP_ID: u16 = 21;
const ESTABLISHED: u8 = 1;
const LISTEN: u8 = 10;
/// Length of `nlmsghdr`.
const HEADER: usize = 16;
/// Length of `inet_diag_msg`.
const MESSAGE: usize = 72;
/// Id of the root cgroup, where every process is that was not put elsewhere.
const ROOT_CGROUP: u64 = 1;
/// The user that stands for all users without a number in the user namespace of this process.
const OVERFLOW_USER: u32 = 65534;

/// Who made a socket: the cgroup, whose id the kernel never reuses, and the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOwner {
    cgroup: u64,
    user: u32,
}

/// A socket that the kernel has found.
#[derive(Clone, Copy, Debug)]
struct Found {
    state: u8,
    user: u32,
    /// 0 while the program has not accepted the connection.
    inode: u32,
    cgroup: Option<u64>,
}

/// The owner of the socket at the other end of this connection, whose addresses are `own` and `peer`.
///
/// # Errors
/// The other end is not in the network namespace of this process, it has not been established or has been closed, or its
/// owner is no particular one: the root cgroup, or a user without a number here.
pub fn peer_owner(own: SocketAddr, peer: SocketAddr) -> io::Result<SocketOwner> {
    let (own, peer) = (canonical(own), canonical(peer));
    // Where no such connection is, the kernel responds with a socket that listens at the address.
    let found = look_up(peer, own)?.filter(|found| found.state == ESTABLISHED);
    let found = found.ok_or_else(|| {
        io::Error::other("the other end of the connection is not open in this network namespace")
    })?;
    // Before it is accepted, a connection has no user on Linux up to 6.16.
    let user = if found.inode == 0 { listener(peer)?.user } else { found.user };
    SocketOwner::new(found.cgroup, user)
}

/// The owner of the socket that listens at this address in the network namespace of this process.
///
/// # Errors
/// No socket listens there, or its owner is no particular one, as for [`peer_owner`].
pub fn listener_owner(address: SocketAddr) -> io::Result<SocketOwner> {
    let found = listener(canonical(address))?;
    SocketOwner::new(found.cgroup, found.user)
}

fn listener(address: SocketAddr) -> io::Result<Found> {
    let any = match address.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let found = look_up(address, SocketAddr::new(any, 0))?.filter(|found| found.state == LISTEN);
    found.ok_or_else(|| io::Error::other(format!("nothing listens at {address}")))
}

impl SocketOwner {
    fn new(cgroup: Option<u64>, user: u32) -> io::Result<Self> {
        let cgroup = cgroup.ok_or_else(|| io::Error::other("the kernel does not know cgroups of sockets"))?;
        if cgroup == ROOT_CGROUP {
            return Err(io::Error::other("the socket belongs to the root cgroup"));
        }
        if user == OVERFLOW_USER {
            return Err(io::Error::other("the socket belongs to a user without a number here"));
        }
        Ok(Self { cgroup, user })
    }
}

/// Sockets of either family are found by the IPv4 addresses that their addresses are mapped from.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Finds the socket with these addresses, of one family.
fn look_up(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Found>> {
    if local.is_ipv4() != remote.is_ipv4() {
        return Ok(None);
    }
    let kernel =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    send(&kernel, &request(local, remote), SendFlags::empty())?;
    let mut response = [0; 1024];
    // The kernel has responded before `send` returns.
    let (length, _, from) = recvfrom(&kernel, &mut response[..], RecvFlags::DONTWAIT)?;
    let sender = from.and_then(|from| netlink::SocketAddrNetlink::try_from(from).ok());
    match sender {
        Some(sender) if sender.pid() == 0 => read_response(&response[..length]),
        _ => Err(io::Error::other("the response is not the kernel's")),
    }
}

/// `nlmsghdr` and `inet_diag_req_v2`.
fn request(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + 56);
    bytes.extend(72_u32.to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    // AF_INET or AF_INET6, IPPROTO_TCP, no extension, every state.
    bytes.extend([if local.is_ipv4() { 2 } else { 10 }, 6, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(remote.port().to_be_bytes());
    for end in [local, remote] {
        match end.ip() {
            IpAddr::V4(ip) => bytes.extend([ip.octets().as_slice(), &[0; 12]].concat()),
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
    }
    // Any interface, any cookie.
    bytes.extend([0; 4]);
    bytes.extend([u8::MAX; 8]);
    bytes
}

fn read_response(bytes: &[u8]) -> io::Result<Option<Found>> {
    let cut = || io::Error::other("the kernel's response is cut off");
    let kind = u16_at(bytes, 4).ok_or_else(cut)?;
    if kind == ERROR {
        let code = u32_at(bytes, HEADER).ok_or_else(cut)?.cast_signed();
        let error = io::Error::from_raw_os_error(code.wrapping_neg());
        return if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) { Ok(None) } else { Err(error) };
    }
    let length = u32_at(bytes, 0).ok_or_else(cut)? as usize;
    let message = bytes.get(HEADER..length).filter(|message| message.len() >= MESSAGE && kind == BY_FAMILY);
    let message = message.ok_or_else(cut)?;
    let [user, inode] = [64, 68].map(|at| u32_at(message, at));
    Ok(Some(Found {
        state: message[1],
        user: user.ok_or_else(cut)?,
        inode: inode.ok_or_else(cut)?,
        cgroup: cgroup_of(&message[MESSAGE..]),
    }))
}

/// The cgroup among the attributes of a response.
fn cgroup_of(mut attributes: &[u8]) -> Option<u64> {
    loop {
        let (length, kind) = (u16_at(attributes, 0)? as usize, u16_at(attributes, 2)?);
        if kind == CGROUP_ID {
            return Some(u64::from_ne_bytes(*attributes.get(4..length)?.first_chunk()?));
        }
        // Each begins at a multiple of 4.
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::process::geteuid;

    use super::*;

    #[test]
    fn kernel_names_user_and_cgroup_of_other_end() {
        // An IPv6 socket may also carry a connection over IPv4.
        for (listen, at) in [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1")] {
            names_other_end(listen.parse().unwrap(), at.parse().unwrap());
        }
    }

    fn names_other_end(listen: IpAddr, at: IpAddr) {
        let server = TcpListener::bind((listen, 0)).unwrap();
        let address = SocketAddr::new(at, server.local_addr().unwrap().port());
        let client = TcpStream::connect(address).unwrap();
        let accepted = server.accept().unwrap();
        let (own, peer) = (canonical(accepted.1), address);
        let found = look_up(peer, own).unwrap().unwrap();
        assert_eq!((found.state, found.user), (ESTABLISHED, geteuid().as_raw()));
        assert!(found.inode > 0 && found.cgroup.is_some(), "{found:?}");
        let listening = listener(peer).unwrap();
        assert_eq!((listening.user, listening.cgroup), (found.user, found.cgroup));

        drop((client, accepted, server));
        assert!(peer_owner(own, address).is_err() && listener_owner(address).is_err());
    }

    #[test]
    fn socket_that_listens_is_no_end_of_another_connection() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        // As if the connection led to another machine or network namespace.
        let own = "127.0.0.1:9".parse().unwrap();
        let found = look_up(address, own).unwrap().unwrap();
        assert_eq!(found.state, LISTEN, "the kernel responds with the listener");
        assert!(peer_owner(own, address).unwrap_err().to_string().contains("not open"));
    }

    #[test]
    fn owner_without_cgroup_or_user_of_its_own_is_none() {
        let owner = |cgroup, user| SocketOwner::new(cgroup, user);
        assert!(owner(Some(2), 1000).is_ok() && owner(Some(2), 0).is_ok());
        assert!(owner(None, 1000).is_err() && owner(Some(ROOT_CGROUP), 1000).is_err());
        assert!(owner(Some(2), OVERFLOW_USER).is_err());
    }

    #[test]
    fn response_that_is_cut_off_names_no_owner() {
        let whole: Vec<u8> = {
            let mut bytes = vec![0; HEADER + MESSAGE + 12];
            bytes[..4].copy_from_slice(&100_u32.to_ne_bytes());
            bytes[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
            bytes[88..90].copy_from_slice(&12_u16.to_ne_bytes());
            bytes[90..92].copy_from_slice(&CGROUP_ID.to_ne_bytes());
            bytes[92..].copy_from_slice(&7_u64.to_ne_bytes());
            bytes
        };
        assert_eq!(read_response(&whole).unwrap().unwrap().cgroup, Some(7));
        for length in 0..whole.len() {
            assert!(read_response(&whole[..length]).is_err(), "{length}");
        }
    }
}
