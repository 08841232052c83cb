// Package secret keeps credentials out of sight: it redacts text, seals what is stored and hides values from printing.
//
// A [Redactor] removes secrets from text that people or machines will read: by value, for the credentials it has been
// told of, and by pattern, for those it has not. A [Key] seals literals at rest and makes keyed digests, so that a
// change of a secret can be seen where the secret itself must not be. A [String] holds a credential that prints as
// [Mask] whatever the verb, the logger or the encoder. [LooksSecret] and [Find] decide what a credential looks like;
// everything that masks, redacts or externalises asks them, so that the three agree.
//
// The package does no I/O but that of the key file, and logs nothing. Any package may import it.
package secret

// Mask is what stands in place of a secret, everywhere.
const Mask = "***"
