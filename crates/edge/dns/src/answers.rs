//! Answers to DNS queries (RFC 1035, RFC 2308).

use std::net::{IpAddr, SocketAddr};

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{
        DNSClass, Name, RData, Record, RecordType,
        rdata::{A, AAAA, NS, SOA},
    },
};

use crate::{
    metrics::{Metrics, increment},
    service_directory::{Directory, Unavailable},
    zone::{Zone, ZoneName},
};

/// Time for which resolvers may cache an address, in seconds. Clients may call a removed service for this time.
const TTL: u32 = 30;
/// Time for which resolvers may cache that a name does not exist, in seconds. A new service is found after at most
/// this time.
const NEGATIVE_TTL: u32 = 5;
/// Maximum length of a response over UDP, in bytes. No network fragments it (DNS flag day 2020). Without EDNS
/// the maximum is 512 bytes.
const MAX_UDP: u16 = 1232;
const MAX_PLAIN_UDP: u16 = 512;
/// Length of a message header, in bytes.
const HEADER: usize = 12;
/// The QR bit of the header: set in responses.
const RESPONSE_BIT: u8 = 0x80;

/// The transport that carries a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Udp,
    Tcp,
}

/// Answers queries for one zone.
#[derive(Debug)]
pub(crate) struct Answers {
    zone: Zone,
    /// Addresses for services without a virtual address.
    addresses: Vec<IpAddr>,
    pub(crate) directory: Directory,
    pub(crate) metrics: Metrics,
}

impl Answers {
    pub(crate) fn new(zone: Zone, addresses: Vec<IpAddr>, directory: Directory) -> Self {
        Self { zone, addresses, directory, metrics: Metrics::default() }
    }

    /// The response to a query. `None` for bytes without a complete header, and for responses: two servers
    /// could otherwise answer each other forever.
    pub(crate) async fn respond(&self, bytes: &[u8], carrier: Carrier) -> Option<Vec<u8>> {
        let flags = *bytes.get(2).filter(|_| bytes.len() >= HEADER)?;
        if flags & RESPONSE_BIT != 0 {
            return None;
        }
        increment(&self.metrics.queries);
        let Ok(query) = Message::from_vec(bytes) else {
            increment(&self.metrics.malformed);
            let id = u16::from_be_bytes([bytes[0], bytes[1]]);
            return Message::error_msg(id, OpCode::Query, ResponseCode::FormErr).to_vec().ok();
        };
        let mut response = response_to(&query);
        match refusal(&query) {
            Ok(asked) => self.answer(asked, &mut response).await,
            Err(code) => drop(response.set_response_code(code)),
        }
        self.count(response.response_code());
        let limit = match (carrier, query.extensions()) {
            (Carrier::Tcp, _) => u16::MAX,
            (Carrier::Udp, Some(edns)) => edns.max_payload().clamp(MAX_PLAIN_UDP, MAX_UDP),
            (Carrier::Udp, None) => MAX_PLAIN_UDP,
        };
        // Cannot fail for a message that was parsed.
        let encoded = response.to_vec().ok()?;
        match encoded.len() <= usize::from(limit) {
            true => Some(encoded),
            false => response.truncate().to_vec().ok(),
        }
    }

    fn count(&self, code: ResponseCode) {
        increment(match code {
            ResponseCode::NoError => &self.metrics.answered,
            ResponseCode::NXDomain => &self.metrics.unknown_names,
            ResponseCode::ServFail => &self.metrics.failures,
            _ => &self.metrics.refused,
        });
    }

    async fn answer(&self, asked: &Query, response: &mut Message) {
        let name = asked.name();
        let (code, records) = match self.zone.find(name) {
            ZoneName::Outside => {
                response.set_authoritative(false).set_response_code(ResponseCode::Refused);
                return;
            }
            ZoneName::Apex => (ResponseCode::NoError, self.apex(asked.query_type())),
            ZoneName::Invalid => (ResponseCode::NXDomain, Vec::new()),
            ZoneName::Tenant(tenant) => match self.directory.has_services(&tenant).await {
                Ok(true) => (ResponseCode::NoError, Vec::new()),
                Ok(false) => (ResponseCode::NXDomain, Vec::new()),
                Err(Unavailable) => (ResponseCode::ServFail, Vec::new()),
            },
            ZoneName::Service(service) => match self.directory.find(&service).await {
                Ok(Some(address)) => (ResponseCode::NoError, self.records(asked, address)),
                Ok(None) => (ResponseCode::NXDomain, Vec::new()),
                Err(Unavailable) => (ResponseCode::ServFail, Vec::new()),
            },
        };
        response.set_response_code(code);
        if records.is_empty() && code != ResponseCode::ServFail {
            response.add_name_server(self.soa());
        }
        response.add_answers(records);
    }

    /// Records with the service's addresses of the requested family.
    fn records(&self, asked: &Query, address: Option<SocketAddr>) -> Vec<Record> {
        let own: Vec<IpAddr> = address.map(|address| address.ip()).into_iter().collect();
        let addresses = if own.is_empty() { &self.addresses } else { &own };
        let is_wanted = |kind| [kind, RecordType::ANY].contains(&asked.query_type());
        let v4 = addresses.iter().find_map(|address| match address {
            IpAddr::V4(address) if is_wanted(RecordType::A) => Some(RData::A(A(*address))),
            _ => None,
        });
        let v6 = addresses.iter().find_map(|address| match address {
            IpAddr::V6(address) if is_wanted(RecordType::AAAA) => Some(RData::AAAA(AAAA(*address))),
            _ => None,
        });
        let record = |data| Record::from_rdata(asked.name().clone(), TTL, data);
        v4.into_iter().chain(v6).map(record).collect()
    }

    fn apex(&self, kind: RecordType) -> Vec<Record> {
        let ns = || Record::from_rdata(self.zone.name().clone(), TTL, RData::NS(NS(self.server_name())));
        match kind {
            RecordType::SOA => vec![self.soa()],
            RecordType::NS => vec![ns()],
            RecordType::ANY => vec![self.soa(), ns()],
            _ => Vec::new(),
        }
    }

    /// The SOA record of the zone. Its minimum and its own time to live limit how long resolvers cache a
    /// missing name (RFC 2308, 5).
    fn soa(&self) -> Record {
        let (server, contact) = (self.server_name(), self.server_name());
        let soa = SOA::new(server, contact, 1, 3600, 600, 86_400, NEGATIVE_TTL);
        Record::from_rdata(self.zone.name().clone(), NEGATIVE_TTL, RData::SOA(soa))
    }

    /// Name of the zone's only server. Any name would do, since no other zone delegates to this zone.
    fn server_name(&self) -> Name {
        self.zone.name().clone()
    }
}

fn response_to(query: &Message) -> Message {
    let mut response = Message::new();
    response.set_id(query.id()).set_message_type(MessageType::Response).set_op_code(query.op_code());
    response.set_recursion_desired(query.recursion_desired()).set_authoritative(true);
    // Several questions are refused and not copied: a response must not be larger than its query.
    if let [asked] = query.queries() {
        response.add_query(asked.clone());
    }
    if query.extensions().is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP);
        response.set_edns(edns);
    }
    response
}

/// The question of a query, or the response code with which the query is refused.
fn refusal(query: &Message) -> Result<&Query, ResponseCode> {
    if query.op_code() != OpCode::Query {
        return Err(ResponseCode::NotImp);
    }
    if query.extensions().as_ref().is_some_and(|edns| edns.version() > 0) {
        return Err(ResponseCode::BADVERS);
    }
    match query.queries() {
        [asked] if [DNSClass::IN, DNSClass::ANY].contains(&asked.query_class()) => Ok(asked),
        [_] => Err(ResponseCode::Refused),
        _ => Err(ResponseCode::FormErr),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use fairmesh_model::ServiceName;

    use super::*;

    const CAPTURED: Ipv4Addr = Ipv4Addr::new(240, 0, 0, 1);

    /// Answers for shop with one service without a virtual address, one with it, and one whose name has two
    /// labels.
    fn answers() -> Answers {
        let directory = Directory::of_services([
            (ServiceName::new("shop/cart").unwrap(), None),
            (ServiceName::new("shop/db").unwrap(), Some(([10, 96, 0, 7], 5432).into())),
            (ServiceName::new("shop/v2.cart").unwrap(), None),
        ]);
        Answers::new("mesh".parse().unwrap(), vec![CAPTURED.into()], directory)
    }

    fn query(name: &str, kind: RecordType) -> Message {
        let mut message = Message::new();
        message.set_id(7).add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message.set_recursion_desired(true);
        message
    }

    async fn asked(message: &Message, carrier: Carrier) -> Option<Message> {
        let response = answers().respond(&message.to_vec().unwrap(), carrier).await?;
        Some(Message::from_vec(&response).unwrap())
    }

    async fn ask(name: &str, kind: RecordType) -> Message {
        let response = asked(&query(name, kind), Carrier::Udp).await.unwrap();
        assert_eq!((response.id(), response.message_type()), (7, MessageType::Response));
        assert_eq!(response.queries()[0].name(), &Name::from_ascii(name).unwrap(), "as it was asked");
        response
    }

    #[tokio::test]
    async fn service_name_resolves_to_virtual_or_captured_address() {
        for (name, address) in [
            ("cart.shop.mesh.", CAPTURED),
            ("Cart.SHOP.mesh.", CAPTURED),
            ("v2.cart.shop.mesh.", CAPTURED),
            ("db.shop.mesh.", Ipv4Addr::new(10, 96, 0, 7)),
        ] {
            let response = ask(name, RecordType::A).await;
            assert_eq!(response.response_code(), ResponseCode::NoError, "{name}");
            assert!(response.authoritative() && !response.recursion_available());
            let [answer] = response.answers() else { panic!("{name}: {response}") };
            assert_eq!((answer.data(), answer.ttl()), (&RData::A(A(address)), TTL), "{name}");
            let other = ask(name, RecordType::AAAA).await;
            assert_eq!((other.response_code(), other.answers().len()), (ResponseCode::NoError, 0), "{name}");
            assert_eq!(
                other.name_servers()[0].record_type(),
                RecordType::SOA,
                "it is not asked for again soon"
            );
        }
    }

    #[tokio::test]
    async fn dns_query_for_missing_name_is_nxdomain_and_for_other_zone_refused() {
        for (name, code) in [
            ("nosuch.shop.mesh.", ResponseCode::NXDomain),
            ("cart.other.mesh.", ResponseCode::NXDomain),
            ("other.mesh.", ResponseCode::NXDomain),
            ("*.shop.mesh.", ResponseCode::NXDomain),
            ("shop.mesh.", ResponseCode::NoError),
            ("mesh.", ResponseCode::NoError),
        ] {
            let response = ask(name, RecordType::A).await;
            assert_eq!((response.response_code(), response.answers().len()), (code, 0), "{name}");
            assert_eq!(response.name_servers()[0].ttl(), NEGATIVE_TTL, "{name}");
        }
        let outside = ask("example.org.", RecordType::A).await;
        assert_eq!(outside.response_code(), ResponseCode::Refused);
        assert!(!outside.authoritative() && outside.name_servers().is_empty());
        assert_eq!(ask("mesh.", RecordType::SOA).await.answers().len(), 1);
    }

    #[tokio::test]
    async fn dns_any_query_returns_both_captured_address_families() {
        let own = Answers { addresses: vec![CAPTURED.into(), Ipv6Addr::LOCALHOST.into()], ..answers() };
        let any =
            own.respond(&query("cart.shop.mesh.", RecordType::ANY).to_vec().unwrap(), Carrier::Tcp).await;
        assert_eq!(Message::from_vec(&any.unwrap()).unwrap().answers().len(), 2);
    }

    #[tokio::test]
    async fn malformed_dns_query_gets_error_and_dns_response_gets_none() {
        let own = answers();
        let plain = query("cart.shop.mesh.", RecordType::A).to_vec().unwrap();
        for cut in HEADER..plain.len() {
            let response = own.respond(&plain[..cut], Carrier::Udp).await.unwrap();
            let response = Message::from_vec(&response).unwrap();
            assert_eq!((response.id(), response.response_code()), (7, ResponseCode::FormErr), "{cut}");
        }
        for cut in 0..HEADER {
            assert!(own.respond(&plain[..cut], Carrier::Udp).await.is_none(), "{cut}");
        }
        let mut response = query("cart.shop.mesh.", RecordType::A);
        response.set_message_type(MessageType::Response);
        assert!(asked(&response, Carrier::Udp).await.is_none());
        let mut update = query("cart.shop.mesh.", RecordType::A);
        update.set_op_code(OpCode::Update);
        assert_eq!(asked(&update, Carrier::Udp).await.unwrap().response_code(), ResponseCode::NotImp);
        let two =
            query("a.shop.mesh.", RecordType::A).add_query(Query::query(Name::root(), RecordType::A)).clone();
        assert_eq!(asked(&two, Carrier::Udp).await.unwrap().response_code(), ResponseCode::FormErr);
    }
}
