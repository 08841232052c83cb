// Package serverconfig is the model of an MCP server entry: what people write under mcpServers, and everything that is
// done to it before a server is started.
//
//	file ──ReadSigned──▶ bytes ──ParseDocument──▶ raw entries ──Decode──▶ Entry, Problems
//	                                                 │
//	                                                 ├─Mask────────▶ what a reader of the configuration sees ──Unmask──▶ what is stored
//	                                                 └─Externalize─▶ public JSON (in snapshots) + literal secrets (sealed)
//	                                                                    │  Fingerprint, DecodePublic
//	                                 environment, secrets ──Resolve──▶ what is started or dialled
//
// It guarantees that one bad entry says what is wrong with it and harms no other, that equal content has equal
// canonical JSON and an equal [Fingerprint], that neither [Mask] nor the public JSON of [Externalize] holds a literal
// secret, and that a reference to the environment either resolves or keeps its server from starting. No [Problem] and
// no error contains a credential value.
//
// It decides nothing about precedence, trust, launch policy or storage, and does no I/O but [ReadSigned].
// Validation looks at shape alone: it looks up no variable, no program and no host.
package serverconfig
