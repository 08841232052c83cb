package safehttp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// class is what an address is to the dialler.
type class uint8

const (
	public   class = iota
	private        // reachable where the policy permits it
	never          // no server can be there: multicast, broadcast
	metadata       // a cloud metadata service: refused whatever the policy
)

// prefixes gives the class of the addresses below each prefix; the first match decides. It lists what the
// special-purpose registries of IANA call not globally reachable, without the documentation ranges, which are
// nobody's network.
var prefixes = []struct {
	prefix netip.Prefix
	class  class
	name   string
}{
	{netip.MustParsePrefix("169.254.0.0/16"), metadata, "the cloud metadata range"},
	{netip.MustParsePrefix("100.100.100.200/32"), metadata, "a cloud metadata address"},
	{netip.MustParsePrefix("168.63.129.16/32"), metadata, "a cloud metadata address"},
	{netip.MustParsePrefix("192.0.0.192/32"), metadata, "a cloud metadata address"},
	{netip.MustParsePrefix("fd00:ec2::/32"), metadata, "a cloud metadata address"},
	{netip.MustParsePrefix("fd20:ce::/32"), metadata, "a cloud metadata address"},
	{netip.MustParsePrefix("fe80::a9fe:a9fe/128"), metadata, "a cloud metadata address"},

	{netip.MustParsePrefix("0.0.0.0/8"), private, "this host"},
	{netip.MustParsePrefix("10.0.0.0/8"), private, "a private network"},
	{netip.MustParsePrefix("100.64.0.0/10"), private, "a carrier-grade NAT network"},
	{netip.MustParsePrefix("127.0.0.0/8"), private, "loopback"},
	{netip.MustParsePrefix("172.16.0.0/12"), private, "a private network"},
	{netip.MustParsePrefix("192.0.0.0/24"), private, "a reserved network"},
	{netip.MustParsePrefix("192.168.0.0/16"), private, "a private network"},
	{netip.MustParsePrefix("198.18.0.0/15"), private, "a benchmarking network"},
	{netip.MustParsePrefix("224.0.0.0/4"), never, "multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), never, "broadcast"},
	{netip.MustParsePrefix("240.0.0.0/4"), private, "a reserved network"},

	{netip.MustParsePrefix("::/128"), private, "this host"},
	{netip.MustParsePrefix("::1/128"), private, "loopback"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), private, "a local translation prefix"},
	{netip.MustParsePrefix("100::/64"), never, "the discard prefix"},
	{netip.MustParsePrefix("2001::/32"), private, "a Teredo tunnel"},
	{netip.MustParsePrefix("2001:10::/28"), private, "a reserved network"},
	{netip.MustParsePrefix("5f00::/16"), private, "a reserved network"},
	{netip.MustParsePrefix("fc00::/7"), private, "a private network"},
	{netip.MustParsePrefix("fe80::/10"), private, "link-local"},
	{netip.MustParsePrefix("fec0::/10"), private, "a private network"},
	{netip.MustParsePrefix("ff00::/8"), never, "multicast"},
}

var (
	compatible = netip.MustParsePrefix("::/96")
	translated = netip.MustParsePrefix("::ffff:0:0:0/96")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")
	teredo     = netip.MustParsePrefix("2001::/32")
	sixToFour  = netip.MustParsePrefix("2002::/16")
)

// classify returns the class of a and what to call it: the stricter of its own and that of an IPv4 address inside it.
func classify(a netip.Addr) (class, string) {
	a = a.WithZone("").Unmap()
	own, ownName := public, ""
	for _, p := range prefixes {
		if p.prefix.Contains(a) {
			own, ownName = p.class, p.name
			break
		}
	}
	inner, form, ok := embedded(a)
	if !ok || own > private {
		return own, ownName
	}
	c, name := classify(inner)
	if c <= own {
		return own, ownName
	}
	return c, fmt.Sprintf("%s, %s as %s", name, inner, form)
}

// embedded returns the IPv4 address that an IPv6 address of a transition mechanism leads to.
func embedded(a netip.Addr) (inner netip.Addr, form string, ok bool) {
	if !a.Is6() {
		return netip.Addr{}, "", false
	}
	b := a.As16()
	tail := netip.AddrFrom4([4]byte(b[12:16]))
	switch {
	case compatible.Contains(a):
		return tail, "IPv4-compatible", true
	case translated.Contains(a):
		return tail, "IPv4-translated", true
	case nat64.Contains(a), localNAT64.Contains(a):
		return tail, "NAT64", true
	case teredo.Contains(a):
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), "Teredo", true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), "6to4", true
	case binary.BigEndian.Uint32(b[8:12])&^0x02000000 == 0x00005efe:
		return tail, "ISATAP", true
	}
	return netip.Addr{}, "", false
}

// metadataNames are hosts of cloud metadata services, for resolvers that answer them with other addresses.
var metadataNames = []string{
	"metadata", "metadata.google.internal", "metadata.goog", "metadata.azure.internal",
	"instance-data", "instance-data.ec2.internal", "metadata.packet.net", "metadata.platformequinix.com",
	"metadata.tencentyun.com", "rancher-metadata",
}

func isMetadataName(host string) bool {
	for _, n := range metadataNames {
		if host == n || strings.HasSuffix(host, "."+n) && strings.Contains(n, ".") {
			return true
		}
	}
	return false
}

// canonical returns host as it is compared: lower case, without brackets, zone or the dot of the root.
func canonical(host string) string {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	host, _, _ = strings.Cut(host, "%")
	return host
}

// numeric reports whether a host that is no IP address in its usual notation is read as a number by some
// resolvers, and if so as which address: 127.1, 0x7f000001, 017700000001 and 2130706433 are all 127.0.0.1.
// The address is invalid where it is a number of no address.
func numeric(host string) (netip.Addr, bool) {
	parts := strings.Split(host, ".")
	last := parts[len(parts)-1]
	if _, ok := number(last); !ok && strings.Trim(last, "0123456789") != "" {
		return netip.Addr{}, false
	}
	if len(parts) > 4 {
		return netip.Addr{}, true
	}
	var v uint64
	for i, p := range parts {
		n, ok := number(p)
		if !ok {
			return netip.Addr{}, true
		}
		limit := uint64(1) << 8
		if i == len(parts)-1 {
			limit = 1 << (8 * (5 - len(parts)))
			v = v << (8 * (5 - len(parts)))
		} else {
			v <<= 8
		}
		if n >= limit {
			return netip.Addr{}, true
		}
		v |= n
	}
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(v)))), true
}

// number reads a part of a number-like host as inet_aton does: decimal, 0x hexadecimal or 0 octal.
func number(s string) (uint64, bool) {
	base := 10
	switch {
	case strings.HasPrefix(s, "0x"):
		s, base = s[2:], 16
		if s == "" {
			return 0, true
		}
	case len(s) > 1 && s[0] == '0':
		s, base = s[1:], 8
	}
	n, err := strconv.ParseUint(s, base, 32)
	return n, err == nil
}

// A Policy reports whether host may be reached at a private address. Host is in lower case, without port, brackets
// or trailing dot. Cloud metadata is out of its reach.
type Policy func(host string) bool

// AnyHost permits private addresses for every host: what a person or an operator configured.
func AnyHost(string) bool { return true }

// SameHost permits private addresses for the host of u alone: what was found at, or asked on behalf of, a
// configured address may lead back to that host and to no other private one. A nil u permits none.
func SameHost(u *url.URL) Policy {
	if u == nil {
		return func(string) bool { return false }
	}
	want := canonical(u.Hostname())
	return func(host string) bool { return host == want }
}

// VisiblyPrivate permits private addresses for the host of u alone, and only where u itself shows that it is
// private: an IP address or localhost. A public-looking name that resolves to a private address is refused.
// It is meant for addresses that a person approved by reading them. A nil u permits none.
func VisiblyPrivate(u *url.URL) Policy {
	if u == nil {
		return SameHost(nil)
	}
	host := canonical(u.Hostname())
	_, err := netip.ParseAddr(host)
	if err != nil && host != "localhost" && !strings.HasSuffix(host, ".localhost") {
		return SameHost(nil)
	}
	return SameHost(u)
}
