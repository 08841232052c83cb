package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
)

// KeySize is the number of bytes of a key.
const KeySize = 32

// The ways in which [Key.Open] fails. The caller knows what was sealed and says so.
var (
	// ErrOtherKey means that the envelope was sealed under a key other than this one.
	ErrOtherKey = errors.New("sealed under another key")
	// ErrNotAuthentic means that the envelope or the data bound to it was changed, or was never an envelope.
	ErrNotAuthentic = errors.New("altered, or sealed for something else")
)

// Key seals secrets for storage and makes keyed digests of them. Encryption and digests use keys of their own, derived
// from the one in the file. A Key is immutable, safe for concurrent use, and prints as its id.
type Key struct {
	id   [8]byte
	aead cipher.AEAD
	mac  []byte
}

// NewKey returns the Key over material, which must be [KeySize] random bytes and is not kept.
func NewKey(material []byte) (*Key, error) {
	if len(material) != KeySize {
		return nil, fmt.Errorf("secret key: %d bytes, want %d", len(material), KeySize)
	}
	derive := func(purpose string, n int) ([]byte, error) {
		return hkdf.Key(sha256.New, material, nil, "toolherd/secret/v1/"+purpose, n)
	}
	id, err := derive("id", 8)
	if err != nil {
		return nil, fmt.Errorf("derive key id: %w", err)
	}
	seal, err := derive("aes-256-gcm", 32)
	if err != nil {
		return nil, fmt.Errorf("derive encryption key: %w", err)
	}
	mac, err := derive("hmac-sha-256", 32)
	if err != nil {
		return nil, fmt.Errorf("derive digest key: %w", err)
	}
	block, err := aes.NewCipher(seal)
	if err != nil {
		return nil, fmt.Errorf("encryption key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("encryption key: %w", err)
	}
	return &Key{id: [8]byte(id), aead: aead, mac: mac}, nil
}

// ID returns 16 hex digits that tell keys apart and say nothing about them.
func (k *Key) ID() string { return hex.EncodeToString(k.id[:]) }

// An envelope is
//
//	version 1 | key id | nonce | ciphertext and tag
//	1 byte    | 8      | 12    | len(plain) + 16
//
// and the tag also covers the version, the key id and the caller's data.
const (
	envelopeVersion = 1
	headerSize      = 1 + 8
)

// Seal encrypts plain (AES-256-GCM, random nonce) and binds it to aad: the place it is stored at, so that a row copied
// elsewhere does not open.
func (k *Key) Seal(plain, aad []byte) ([]byte, error) {
	header := append([]byte{envelopeVersion}, k.id[:]...)
	return k.aead.Seal(header, nil, plain, slices.Concat(header, aad)), nil //nolint:gosec // G407: this AEAD makes its own random nonce
}

// Open decrypts an envelope that [Key.Seal] made under this key for the same aad.
// It returns [ErrOtherKey] or [ErrNotAuthentic].
func (k *Key) Open(envelope, aad []byte) ([]byte, error) {
	if len(envelope) < headerSize || envelope[0] != envelopeVersion {
		return nil, ErrNotAuthentic
	}
	header := envelope[:headerSize]
	if id := header[1:]; !slices.Equal(id, k.id[:]) {
		return nil, fmt.Errorf("%w: %x, this one is %x", ErrOtherKey, id, k.id)
	}
	plain, err := k.aead.Open(nil, nil, envelope[headerSize:], slices.Concat(header, aad))
	if err != nil {
		return nil, ErrNotAuthentic
	}
	return plain, nil
}

// MAC returns the hex HMAC-SHA-256 of data for the purpose that label names: equal data under two labels gives digests
// that cannot be told to be of the same data.
func (k *Key) MAC(label string, data []byte) string {
	h := hmac.New(sha256.New, k.mac)
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(label)))
	h.Write(n[:])
	h.Write([]byte(label))
	h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}

// String returns a text that names the key by its id.
func (k *Key) String() string { return "secret key " + k.ID() }

// Format writes [Key.String] whatever the verb and flags are.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// LogValue is what slog shows.
func (k *Key) LogValue() slog.Value { return slog.StringValue(k.String()) }
