//! Networks of IP addresses.
//!
//! In:     an address and the number of its leading bits that count.
//! Out:    whether a client's address is in the network.

use std::net::IpAddr;

/// A network of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// An address of the network.
    pub address: IpAddr,
    /// How many leading bits the network's addresses have in common.
    pub prefix: u8,
}

impl Network {
    /// Returns whether a client may connect: from this machine, or from one of the networks.
    pub fn allow(networks: &[Self], client: IpAddr) -> bool {
        // A socket for both kinds of addresses shows an IPv4 client as an IPv6 address.
        let client = client.to_canonical();
        client.is_loopback() || networks.iter().any(|network| network.holds(client))
    }

    fn holds(&self, client: IpAddr) -> bool {
        let (ours, theirs, bits) = match (self.address, client) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => (u128::from(ours.to_bits()), u128::from(theirs.to_bits()), 32),
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => (ours.to_bits(), theirs.to_bits(), 128),
            _ => return false,
        };
        let ignored = u32::saturating_sub(bits, self.prefix.into());
        // A network of all addresses ignores all bits.
        (ours ^ theirs).checked_shr(ignored).unwrap_or(0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str, prefix: u8) -> Network {
        Network { address: address.parse().unwrap(), prefix }
    }

    #[test]
    fn only_this_machine_and_the_given_networks_may_connect() {
        let networks = [network("10.1.2.0", 24), network("192.168.7.9", 32), network("fd00::", 8)];
        let allowed = |client: &str| Network::allow(&networks, client.parse().unwrap());
        for client in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "10.1.2.255", "::ffff:10.1.2.3", "fd12::1"]
        {
            assert!(allowed(client), "{client}");
        }
        assert!(allowed("192.168.7.9"));
        for client in ["10.1.3.0", "192.168.7.8", "8.8.8.8", "fe80::1", "::ffff:10.1.3.3", "::"] {
            assert!(!allowed(client), "{client}");
        }
    }

    #[test]
    fn a_network_of_prefix_0_has_all_addresses_of_its_kind() {
        assert!(Network::allow(&[network("0.0.0.0", 0)], "8.8.8.8".parse().unwrap()));
        assert!(!Network::allow(&[network("0.0.0.0", 0)], "2001:db8::1".parse().unwrap()));
        assert!(Network::allow(&[network("::", 0)], "2001:db8::1".parse().unwrap()));
    }
}
