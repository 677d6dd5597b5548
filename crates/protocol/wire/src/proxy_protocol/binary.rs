//! Version 2: a signature, the family, addresses, and TLVs. TLVs are ignored, except the id of the connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Addresses, ConnectionId, Header, InvalidHeader, MIN_LENGTH};

pub(super) const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Length of the fixed part, in bytes: signature, version and command, family and transport, and the length of the
/// rest.
const FIXED_LEN: usize = 16;
/// Maximum length of the rest, in bytes. TLVs of load balancers take some hundred bytes; the length field allows 64
/// KiB.
const MAX_REST: usize = 4096;

const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const UNSPECIFIED: u8 = 0x00;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const UNIX: u8 = 0x31;

/// Type of the TLV with the id of the connection.
const UNIQUE_ID: u8 = 0x05;

pub(super) fn read(bytes: &[u8]) -> Result<Header, InvalidHeader> {
    let common = bytes.len().min(SIGNATURE.len());
    if bytes[..common] != SIGNATURE[..common] {
        return Err(InvalidHeader("the signature"));
    }
    let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED_LEN>() else {
        return Ok(Header::Incomplete(MIN_LENGTH.max(FIXED_LEN) - bytes.len()));
    };
    let [.., command, kind, high, low] = *fixed;
    if !matches!(command, LOCAL | PROXY) {
        return Err(InvalidHeader("the version or the command"));
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_REST {
        return Err(InvalidHeader("more than 4 KiB"));
    }
    if rest.len() < length {
        return Ok(Header::Incomplete(length - rest.len()));
    }
    let (addresses, connection_id) = match command {
        PROXY => parse_rest(kind, &rest[..length])?,
        // LOCAL: a connection of the load balancer itself. Its addresses must be ignored.
        _ => (None, None),
    };
    Ok(Header::Complete { length: FIXED_LEN + length, addresses, connection_id })
}

fn parse_rest(kind: u8, rest: &[u8]) -> Result<(Option<Addresses>, Option<ConnectionId>), InvalidHeader> {
    let short = InvalidHeader("truncated addresses");
    let (addresses, tlvs) = match kind {
        // The layout of the rest is unspecified.
        UNSPECIFIED => return Ok((None, None)),
        TCP4 => {
            let (block, tlvs) = rest.split_first_chunk::<12>().ok_or(short)?;
            (Some(addresses_in(block, 4)), tlvs)
        }
        TCP6 => {
            let (block, tlvs) = rest.split_first_chunk::<36>().ok_or(short)?;
            (Some(addresses_in(block, 16)), tlvs)
        }
        // Two socket paths instead of IP addresses.
        UNIX => (None, rest.split_first_chunk::<216>().ok_or(short)?.1),
        _ => return Err(InvalidHeader("a family or transport that is not a stream")),
    };
    Ok((addresses, connection_id(tlvs)?))
}

/// Parses two addresses of `size` bytes (4 or 16) followed by two ports. `block` has exactly this length.
fn addresses_in(block: &[u8], size: usize) -> Addresses {
    let (addresses, ports) = block.split_at(2 * size);
    let (source, destination) = addresses.split_at(size);
    let (from, to) = ports.split_at(2);
    Addresses { source: socket(source, from), destination: socket(destination, to) }
}

fn socket(address: &[u8], port: &[u8]) -> SocketAddr {
    let number = |bytes: &[u8]| bytes.iter().fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte));
    // The number has as many bits as `address`.
    let ip = match address.len() {
        4 => IpAddr::V4(Ipv4Addr::from_bits(number(address) as u32)),
        _ => IpAddr::V6(Ipv6Addr::from_bits(number(address))),
    };
    SocketAddr::new(ip, number(port) as u16)
}

/// Finds the id of the connection among TLVs. Each TLV has a type, a length of two bytes and a value; together they
/// must fill the rest.
fn connection_id(mut tlvs: &[u8]) -> Result<Option<ConnectionId>, InvalidHeader> {
    let mut found = None;
    while !tlvs.is_empty() {
        let cut = InvalidHeader("a truncated TLV");
        let ([kind, high, low], rest) = tlvs.split_first_chunk::<3>().ok_or(cut)?;
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let (value, further) = rest.split_at_checked(length).ok_or(cut)?;
        if *kind == UNIQUE_ID
            && let Ok(id) = value.try_into()
            && found.replace(ConnectionId(u128::from_be_bytes(id))).is_some()
        {
            return Err(InvalidHeader("two ids of the connection"));
        }
        tlvs = further;
    }
    Ok(found)
}

pub(super) fn write(
    Addresses { source, destination }: Addresses,
    connection_id: Option<ConnectionId>,
) -> Vec<u8> {
    let mut block = Vec::with_capacity(FIXED_LEN + 36);
    for end in [source, destination] {
        match end.ip() {
            IpAddr::V4(ip) => block.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => block.extend_from_slice(&ip.octets()),
        }
    }
    for end in [source, destination] {
        block.extend_from_slice(&end.port().to_be_bytes());
    }
    let kind = if source.is_ipv4() { TCP4 } else { TCP6 };
    if let Some(ConnectionId(id)) = connection_id {
        let id = id.to_be_bytes();
        block.extend_from_slice(&[UNIQUE_ID, 0, id.len() as u8]);
        block.extend_from_slice(&id);
    }
    // At most 55 bytes.
    let length = block.len() as u8;
    [&SIGNATURE[..], &[PROXY, kind, 0, length], &block].concat()
}
