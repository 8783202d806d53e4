//! From what somebody wants to what becomes of it: judged, and from there on its way
//! (network/relay/connect_upstream.rs) or in doubt (network/relay/pending.rs).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::connection::{Connection, Direction, Doubt, Subject, Turn};
use super::{CLIENT, Entrance, Relay, event};
use crate::network::rules::host_table::HostDecision;
use crate::plan::host_name::Host;
use crate::plan::{Action, Published};

/// The namespace's own addresses (network/namespace.rs).
const OWN: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 255, 255, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x5a, 0, 0, 0, 0, 0, 1)),
];

impl<'t> Relay<'t> {
    pub(super) fn begin_relaying(
        &mut self,
        client: OwnedFd,
        dialled: SocketAddr,
        entrance: Entrance,
        generation: u16,
        index: usize,
    ) {
        let here = |port, way| (Subject { port, way, ..Subject::unknown() }, None);
        let (subject, verdict) = match entrance {
            // A client of the proxy says what it wants before it comes here.
            Entrance::Dialled | Entrance::Proxy => {
                self.subject_of(Host::Address(dialled.ip()), dialled.port())
            }
            Entrance::Local(port) => here(port, Direction::Local),
            Entrance::Published(Published { inside, host }) => {
                here(inside, Direction::Inward(host))
            }
        };
        let synthetic = subject.synthetic;
        let number = event(CLIENT, generation, index);
        let Ok(connection) = Connection::new(client, subject, self.now, &self.epoll, number) else {
            if let Some(address) = synthetic {
                self.stub.synthetic.release(address);
            }
            return self.vacate(index);
        };
        let mut connection = Box::new(connection);
        let turn = self.judged(&mut connection, verdict, generation, index);
        self.settle(connection, turn, generation, index);
    }

    /// What somebody wants, and what the table says of it; None: that is nowhere.
    pub(super) fn subject_of(
        &mut self,
        host: Host,
        port: u16,
    ) -> (Subject<'t>, Option<HostDecision<'t>>) {
        let (name, synthetic, address) = match host {
            Host::Name(name) => (Some(name), None, None),
            Host::Address(address) => {
                let known = self.stub.synthetic.name_of(address).cloned();
                match known.filter(|_| self.stub.synthetic.hold(address)) {
                    Some(name) => (Some(name), Some(address), None),
                    None => (None, None, Some(address)),
                }
            }
        };
        let verdict = match (&name, address) {
            (Some(name), _) => Some(self.table.judge_name(name, Some(port))),
            (None, Some(address)) if !leads_nowhere(address) => {
                Some(self.table.judge_address(address, port))
            }
            _ => None,
        };
        let rule = verdict.and_then(|verdict| verdict.rule);
        (Subject { name, synthetic, port, address, rule, ..Subject::unknown() }, verdict)
    }

    pub(super) fn judged(
        &mut self,
        connection: &mut Connection<'t>,
        verdict: Option<HostDecision<'t>>,
        generation: u16,
        index: usize,
    ) -> Turn {
        let number = event(CLIENT, generation, index);
        match verdict {
            None if connection.subject.way != Direction::Outward => {
                self.dial(connection, Rc::clone(&self.loopback), generation, index)
            }
            None => self.doubt(connection, Doubt::Refused("no host uses this address"), number),
            Some(verdict) => match verdict.action {
                Action::Allow => self.go_on(connection, generation, index),
                Action::Ask => self.doubt(connection, Doubt::Unasked, number),
                Action::Deny => {
                    let reason = verdict.reason.unwrap_or("no rule allows it");
                    self.doubt(connection, Doubt::Refused(reason), number)
                }
            },
        }
    }
}

/// The listener itself can be dialled, by addresses that are nobody's; and so can those that no
/// name was given.
fn leads_nowhere(address: IpAddr) -> bool {
    OWN.contains(&address)
        || match address {
            IpAddr::V4(v4) => matches!(v4.octets(), [0 | 127, ..] | [198, 18 | 19, ..]),
            IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified() || v6.segments()[0] == 0xfdfa,
        }
}
