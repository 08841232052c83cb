// Package safehttp is the one outbound HTTP client: MCP servers, OAuth metadata and tokens, key sets and webhooks
// are reached through it and through nothing else, because their addresses come from configuration, from other
// servers or from callers.
//
//	request ─▶ URL checks ─▶ pool ─▶ resolve once ─▶ check each address ─▶ dial ─▶ bounded, decoded body
//	               ▲                                                                    │
//	               └───────────────── redirect, checked again ◀──────── 3xx ◀───────────┘
//
// What it guarantees:
//
//   - A name is resolved once and a checked address of that answer is dialled, so a name that changes its answer
//     between check and use gains nothing. Loopback, private, link-local, carrier-grade NAT, reserved and multicast
//     addresses, also inside IPv4-mapped, NAT64, 6to4, Teredo and ISATAP forms, are refused unless
//     [Options.AllowPrivate] permits the host.
//   - The addresses and names of cloud metadata services are never reached, whatever the policy.
//   - Only http and https; hosts that look like numbers (127.1, 0x7f000001) are refused with the usual notation
//     in the message; user:password@ is refused unless [Options.AllowUserinfo] is set.
//   - A redirect is checked like a first request, by the policy for discovered addresses: a private address only
//     where the host is the one first asked for. It never turns a POST into a GET, never goes from https to http,
//     and no header but a few harmless ones crosses to another origin.
//   - Headers, body, decompressed body and times are bounded. No proxy of the environment is used.
//
// What it does not do: it authenticates nobody, retries nothing (beyond what net/http does when not a byte of a
// request was sent) and keeps no cookies. Behind an explicit [Options.Proxy] the proxy resolves names, so there
// only literal addresses and known names are checked.
//
// A refusal is a [fault.Error] that wraps [ErrRefused] and names the address and what would allow it.
package safehttp
