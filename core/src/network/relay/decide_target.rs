//! Judges the target of a new connection. It continues in network/relay/connect_or_refuse.rs if
//! allowed, else in network/relay/pending_connections.rs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::connection::{Connection, ConnectionTarget, Direction, PendingReason, Turn};
use super::{CLIENT, ListenerKind, Relay, event};
use crate::network::rules::host_table::HostDecision;
use crate::plan::host_name::Host;
use crate::plan::{Action, PublishedPort};

/// The namespace's own addresses (network/namespace.rs).
const OWN_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 255, 255, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x5a, 0, 0, 0, 0, 0, 1)),
];

impl<'t> Relay<'t> {
    pub(super) fn begin_relaying(
        &mut self,
        client: OwnedFd,
        dialled: SocketAddr,
        entrance: ListenerKind,
        generation: u16,
        index: usize,
    ) {
        let here = |port, direction| {
            (ConnectionTarget { port, direction, ..ConnectionTarget::unknown() }, None)
        };
        let (target, decision) = match entrance {
            // A proxy client names its target before it comes here.
            ListenerKind::AnyHost | ListenerKind::Proxy => {
                self.target_of(Host::Address(dialled.ip()), dialled.port())
            }
            ListenerKind::Local(port) => here(port, Direction::Local),
            ListenerKind::Published(PublishedPort { inside, host }) => {
                here(inside, Direction::Inward(host))
            }
        };
        let synthetic = target.synthetic;
        let number = event(CLIENT, generation, index);
        let Ok(connection) = Connection::new(client, target, self.now, &self.epoll, number) else {
            if let Some(address) = synthetic {
                self.stub.synthetic.release(address);
            }
            return self.free_slot(index);
        };
        let mut connection = Box::new(connection);
        let turn = self.apply_decision(&mut connection, decision, generation, index);
        self.apply_turn(connection, turn, generation, index);
    }

    /// The target and the decision of the host table. None: the address can not be reached.
    pub(super) fn target_of(
        &mut self,
        host: Host,
        port: u16,
    ) -> (ConnectionTarget<'t>, Option<HostDecision<'t>>) {
        let (name, synthetic, address) = match host {
            Host::Name(name) => (Some(name), None, None),
            Host::Address(address) => {
                let known = self.stub.synthetic.name_of(address).cloned();
                match known.filter(|_| self.stub.synthetic.acquire(address)) {
                    Some(name) => (Some(name), Some(address), None),
                    None => (None, None, Some(address)),
                }
            }
        };
        let decision = match (&name, address) {
            (Some(name), _) => Some(self.table.judge_name(name, Some(port))),
            (None, Some(address)) if !is_unroutable(address) => {
                Some(self.table.judge_address(address, port))
            }
            _ => None,
        };
        let rule = decision.and_then(|decision| decision.rule);
        (
            ConnectionTarget {
                name,
                synthetic,
                port,
                address,
                rule,
                ..ConnectionTarget::unknown()
            },
            decision,
        )
    }

    pub(super) fn apply_decision(
        &mut self,
        connection: &mut Connection<'t>,
        decision: Option<HostDecision<'t>>,
        generation: u16,
        index: usize,
    ) -> Turn {
        let number = event(CLIENT, generation, index);
        match decision {
            None if connection.target.direction != Direction::Outward => {
                self.dial(connection, Rc::clone(&self.loopback), generation, index)
            }
            None => self.find_owner(
                connection,
                PendingReason::Denied("no host uses this address"),
                number,
            ),
            Some(decision) => match decision.action {
                Action::Allow => self.connect_allowed(connection, generation, index),
                Action::Ask => self.find_owner(connection, PendingReason::NotAsked, number),
                Action::Deny => {
                    let reason = decision.reason.unwrap_or("no rule allows it");
                    self.find_owner(connection, PendingReason::Denied(reason), number)
                }
            },
        }
    }
}

/// True for addresses that lead to the listener itself, and for synthetic addresses without a name.
fn is_unroutable(address: IpAddr) -> bool {
    OWN_ADDRESSES.contains(&address)
        || match address {
            IpAddr::V4(v4) => matches!(v4.octets(), [0 | 127, ..] | [198, 18 | 19, ..]),
            IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified() || v6.segments()[0] == 0xfdfa,
        }
}
