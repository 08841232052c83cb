package safehttp

import (
	"net/netip"
	"net/url"
	"testing"
)

func TestClassifySeesThroughEveryFormOfAnAddress(t *testing.T) {
	for in, want := range map[string]class{
		"93.184.216.34":                   public,
		"203.0.113.5":                     public,
		"2606:4700::1111":                 public,
		"64:ff9b::5db8:d822":              public, // 93.184.216.34
		"127.0.0.1":                       private,
		"127.255.255.254":                 private,
		"10.0.0.1":                        private,
		"172.16.0.1":                      private,
		"172.32.0.1":                      public,
		"192.168.1.1":                     private,
		"100.64.0.1":                      private,
		"100.128.0.1":                     public,
		"198.18.0.1":                      private,
		"0.0.0.0":                         private,
		"0.1.2.3":                         private,
		"240.0.0.1":                       private,
		"224.0.0.1":                       never,
		"255.255.255.255":                 never,
		"::":                              private,
		"::1":                             private,
		"fe80::1":                         private,
		"fe80::1%eth0":                    private,
		"fec0::1":                         private,
		"fc00::1":                         private,
		"fd12:3456::1":                    private,
		"ff02::1":                         never,
		"100::1":                          never,
		"2001::1":                         private, // Teredo
		"64:ff9b:1::1":                    private,
		"::ffff:127.0.0.1":                private,
		"::ffff:10.1.2.3":                 private,
		"::127.0.0.1":                     private,
		"::ffff:0:10.0.0.1":               private,
		"64:ff9b::10.0.0.1":               private,
		"2002:0a00:0001::1":               private, // 6to4 of 10.0.0.1
		"2002:5db8:d822::1":               public,
		"2606:4700::5efe:10.0.0.1":        private, // ISATAP
		"2606:4700:0:0:200:5efe:a00:1":    private,
		"169.254.169.254":                 metadata,
		"169.254.170.2":                   metadata,
		"::ffff:169.254.169.254":          metadata,
		"::ffff:a9fe:a9fe":                metadata,
		"::169.254.169.254":               metadata,
		"64:ff9b::a9fe:a9fe":              metadata,
		"2002:a9fe:a9fe::":                metadata,
		"64:ff9b:1::a9fe:a9fe":            metadata,
		"64:ff9b:1::808:808":              private,
		"fe80::5efe:a9fe:a9fe":            metadata,
		"2001::5601:5601":                 metadata, // 169.254.169.254 as a Teredo client
		"2606:4700::5efe:169.254.169.254": metadata,
		"fd00:ec2::254":                   metadata,
		"fd20:ce::254":                    metadata,
		"fe80::a9fe:a9fe%2":               metadata,
		"100.100.100.200":                 metadata,
		"168.63.129.16":                   metadata,
		"192.0.0.192":                     metadata,
	} {
		if got, name := classify(netip.MustParseAddr(in)); got != want {
			t.Errorf("classify(%s) = %d (%s), want %d", in, got, name, want)
		}
	}
}

func TestNumberLikeHostsAreRecognised(t *testing.T) {
	for host, want := range map[string]string{
		"127.1":           "127.0.0.1",
		"127.0.1":         "127.0.0.1",
		"0x7f000001":      "127.0.0.1",
		"0x7f.1":          "127.0.0.1",
		"0x7f.0.0.0x1":    "127.0.0.1",
		"2130706433":      "127.0.0.1",
		"017700000001":    "127.0.0.1",
		"0177.0.0.1":      "127.0.0.1",
		"0":               "0.0.0.0",
		"2852039166":      "169.254.169.254",
		"0xa9fea9fe":      "169.254.169.254",
		"0xa9.254.0251.3": "169.254.169.3",
		"256.1.1.1":       "",
		"1.2.3.4.5":       "",
		"127.0.0.09":      "",
		"4294967296":      "",
		"99999999999999":  "",
		"a.1":             "",
	} {
		got, ok := numeric(host)
		if !ok {
			t.Errorf("numeric(%q) is not recognised", host)
		} else if want == "" && got.IsValid() || want != "" && got.String() != want {
			t.Errorf("numeric(%q) = %v, want %q", host, got, want)
		}
	}
	for _, host := range []string{"example.com", "localhost", "1password.com", "a.b.c", "x0", "0x7f.example", "127.0.0.1.nip.io", "deadbeef"} {
		if got, ok := numeric(host); ok {
			t.Errorf("numeric(%q) = %v, want a name", host, got)
		}
	}
}

func TestPoliciesPermitExactlyTheConfiguredHost(t *testing.T) {
	configured := mustURL(t, "http://GitLab.Corp.:8080/mcp")
	if p := SameHost(configured); !p("gitlab.corp") || p("other.corp") || p("sub.gitlab.corp") {
		t.Error("SameHost must permit the host of the URL alone")
	}
	for raw, want := range map[string]bool{
		"http://10.0.0.1/": true, "http://[::1]:3000/": true, "http://localhost:1/": true, "http://api.localhost/": true,
		"http://gitlab.corp/": false, "http://example.com/": false,
	} {
		u := mustURL(t, raw)
		if got := VisiblyPrivate(u)(canonical(u.Hostname())); got != want {
			t.Errorf("VisiblyPrivate(%s) = %v, want %v", raw, got, want)
		}
	}
	if SameHost(nil)("x") || VisiblyPrivate(nil)("localhost") {
		t.Error("a nil URL must permit nothing")
	}
}

func mustURL(t *testing.T, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func FuzzCanonicalHostNeverHidesAnAddress(f *testing.F) {
	for _, s := range []string{"127.1", "0x7f000001", "[::1]", "localhost.", "169.254.169.254", "metadata.google.internal.", "fe80::1%eth0", "0.0.0.0", "1.2.3.4.5", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host := canonical(s)
		if checkHost(host) != nil {
			return
		}
		if a, err := netip.ParseAddr(host); err == nil {
			if c, _ := classify(a); c == metadata && CheckURL(&url.URL{Scheme: "http", Host: hostPort(a)}) == nil {
				t.Fatalf("%q passes", s)
			}
			return
		}
		if a, ok := numeric(host); ok {
			t.Fatalf("%q passes although it reads as %v", s, a)
		}
	})
}

func hostPort(a netip.Addr) string {
	if a.Is6() {
		return "[" + a.WithZone("").String() + "]"
	}
	return a.String()
}
