// A workload with go-spiffe, as a judge of the agent's Workload API: it fetches its identities, calls, and is called.
package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	log.SetFlags(0)
	ctx := context.Background()
	switch os.Args[1] {
	case "fetch":
		// fetch: prints each identity with the number of roots that it comes with.
		limited, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		found, err := workloadapi.FetchX509Context(limited)
		check(err)
		for _, svid := range found.SVIDs {
			bundle, err := found.Bundles.GetX509BundleForTrustDomain(svid.ID.TrustDomain())
			check(err)
			fmt.Println(svid.ID, len(bundle.X509Authorities()))
		}
	case "bundles":
		bundles, err := workloadapi.FetchX509Bundles(ctx)
		check(err)
		for _, bundle := range bundles.Bundles() {
			fmt.Println(bundle.TrustDomain(), len(bundle.X509Authorities()))
		}
	case "jwt":
		// jwt AUDIENCE [ID]: prints the token of the first identity, or of this one.
		params := jwtsvid.Params{Audience: os.Args[2]}
		if len(os.Args) > 3 {
			params.Subject = spiffeid.RequireFromString(os.Args[3])
		}
		svid, err := workloadapi.FetchJWTSVID(ctx, params)
		check(err)
		fmt.Println(svid.Marshal())
	case "jwts":
		// jwts AUDIENCE: prints the identities that have a token.
		svids, err := workloadapi.FetchJWTSVIDs(ctx, jwtsvid.Params{Audience: os.Args[2]})
		check(err)
		for _, svid := range svids {
			fmt.Println(svid.ID)
		}
	case "verify":
		// verify TOKEN AUDIENCE: prints the identity, as the bundles of the Workload API prove it.
		bundles, err := workloadapi.FetchJWTBundles(ctx)
		check(err)
		svid, err := jwtsvid.ParseAndValidate(os.Args[2], bundles, []string{os.Args[3]})
		check(err)
		fmt.Println(svid.ID)
	case "validate":
		// validate TOKEN AUDIENCE: prints the identity, as the Workload API proves it.
		svid, err := workloadapi.ValidateJWTSVID(ctx, os.Args[2], os.Args[3])
		check(err)
		fmt.Println(svid.ID)
	case "watch-jwt":
		// watch-jwt: prints the number of keys of each domain for each response, until it is killed.
		check(workloadapi.WatchJWTBundles(ctx, jwtWatcher{}))
	case "document":
		// document URL DOMAIN: prints the numbers of roots and keys of the domain's bundle endpoint.
		response, err := http.Get(os.Args[2])
		check(err)
		bundle, err := spiffebundle.Read(spiffeid.RequireTrustDomainFromString(os.Args[3]), response.Body)
		check(err)
		fmt.Println(len(bundle.X509Authorities()), len(bundle.JWTAuthorities()))
	case "watch":
		// watch: prints a line for each response, until it is killed.
		check(workloadapi.WatchX509Context(ctx, watcher{}))
	case "call":
		// call URL ID: prints the response.
		source, err := workloadapi.NewX509Source(ctx)
		check(err)
		id := spiffeid.RequireFromString(os.Args[3])
		config := tlsconfig.MTLSClientConfig(source, source, tlsconfig.AuthorizeID(id))
		client := http.Client{Transport: &http.Transport{TLSClientConfig: config}, Timeout: 20 * time.Second}
		response, err := client.Get(os.Args[2])
		check(err)
		body, err := io.ReadAll(response.Body)
		check(err)
		fmt.Println(response.StatusCode, string(body))
	case "serve":
		// serve: prints its address, and responds with the identity of the caller, who is of the same trust domain.
		source, err := workloadapi.NewX509Source(ctx)
		check(err)
		svid, err := source.GetX509SVID()
		check(err)
		member := tlsconfig.AuthorizeMemberOf(svid.ID.TrustDomain())
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		check(err)
		fmt.Println(listener.Addr())
		server := http.Server{
			TLSConfig: tlsconfig.MTLSServerConfig(source, source, member),
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(w, "called by %s", idOf(r.TLS.PeerCertificates[0]))
			}),
		}
		check(server.ServeTLS(listener, "", ""))
	default:
		log.Fatal("unknown: ", os.Args[1])
	}
}

func idOf(certificate *x509.Certificate) string {
	return certificate.URIs[0].String()
}

type watcher struct{}

func (watcher) OnX509ContextUpdate(found *workloadapi.X509Context) {
	for _, svid := range found.SVIDs {
		fmt.Printf("%s %x ", svid.ID, svid.Certificates[0].SerialNumber)
	}
	for _, bundle := range found.Bundles.Bundles() {
		fmt.Printf("roots %d", len(bundle.X509Authorities()))
	}
	fmt.Println()
}

type jwtWatcher struct{}

func (jwtWatcher) OnJWTBundlesUpdate(found *jwtbundle.Set) {
	for _, bundle := range found.Bundles() {
		fmt.Print(bundle.TrustDomain(), " ", len(bundle.JWTAuthorities()), " ")
	}
	fmt.Println()
}

func (jwtWatcher) OnJWTBundlesWatchError(err error) {
	fmt.Println("error:", err)
}

func (watcher) OnX509ContextWatchError(err error) {
	fmt.Println("error:", err)
}
