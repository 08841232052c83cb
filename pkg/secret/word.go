package secret

import "strings"

// words are the names of credentials, in the form that normalize gives.
var words = [...]string{
	"_api_key_", "_apikey_", "_access_key_", "_private_key_", "_client_secret_", "_secret_", "_token_", "_password_",
	"_passwd_", "_credential_", "_credentials_", "_authorization_", "_bearer_",
}

// LooksSecret reports whether key names a credential: split at camelCase humps and at everything that is not a letter
// or digit, in lower case, it holds a secret word as a whole run. githubToken and X-Api-Key do, tokenizer does not.
func LooksSecret(key string) bool {
	n := normalize(key)
	for _, w := range words {
		if strings.Contains(n, w) {
			return true
		}
	}
	return false
}

// endsSecret is LooksSecret for names in running text, where token_url or "secret santa list" are common: the secret
// word has to be the last one.
func endsSecret(name string) bool {
	n := normalize(name)
	for _, w := range words {
		if strings.HasSuffix(n, w) {
			return true
		}
	}
	return false
}

// normalize returns the words of key in lower case, each with an underscore before it and one after the last.
func normalize(key string) string {
	b := make([]byte, 1, len(key)+8)
	b[0] = '_'
	part := func() {
		if b[len(b)-1] != '_' {
			b = append(b, '_')
		}
	}
	for i := range len(key) {
		c := key[i]
		switch {
		case isUpper(c):
			// A hump starts after a lower-case letter or digit (githubToken), and at the last capital of a run that a
			// lower-case letter follows (HTTPToken).
			if i > 0 && (!isUpper(key[i-1]) || i+1 < len(key) && isLower(key[i+1])) {
				part()
			}
			b = append(b, c|0x20)
		case isLower(c) || isDigit(c):
			b = append(b, c)
		default:
			part()
		}
	}
	part()
	return string(b)
}

func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }
func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isAlnum(c byte) bool { return isUpper(c) || isLower(c) || isDigit(c) }
