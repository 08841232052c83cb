package fake

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"time"
)

// SignForTest returns the v1 signature of a delivery.
func SignForTest(secret, id, stamp, body string) string {
	k, _ := parseKey(secret)
	mac := hmac.New(sha256.New, k.bytes)
	mac.Write([]byte(id + "." + stamp + "." + body))
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// PublicKeyForTest returns the whpk_ text of the pair with this seed.
func PublicKeyForTest(seed []byte) string {
	public, _ := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	return "whpk_" + base64.StdEncoding.EncodeToString(public)
}

// VerifyForTest verifies as a receiver with one key does at the time now.
func VerifyForTest(secret string, h http.Header, body string, now time.Time) error {
	k, err := parseKey(secret)
	if err != nil {
		return err
	}
	_, err = verify([]key{k}, h, []byte(body), now)
	return err
}
