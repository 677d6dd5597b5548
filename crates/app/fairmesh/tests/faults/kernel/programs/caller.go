// Calls each path several times on kept connections, and says how many responses were the right ones. Arguments: an address and paths.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func main() {
	transport := &http.Transport{Dial: func(network, _ string) (net.Conn, error) {
		return net.Dial(network, os.Args[1])
	}}
	client, right := http.Client{Transport: transport}, 0
	for round := 0; round < 10; round++ {
		for _, path := range os.Args[2:] {
			method, sent := "GET", ""
			if round%2 == 1 {
				method, sent = "POST", strings.Repeat("b", round*20)
			}
			request, err := http.NewRequest(method, "http://raw.shop/"+path, strings.NewReader(sent))
			if err != nil {
				panic(err)
			}
			response, err := client.Do(request)
			if err != nil {
				fmt.Println(path, err)
				continue
			}
			body, err := io.ReadAll(response.Body)
			response.Body.Close()
			size, _ := strconv.Atoi(strings.Split(path, "-")[1])
			if err == nil && response.StatusCode == 200 && string(body) == path+":"+sent+strings.Repeat("x", size) {
				right++
			}
		}
	}
	fmt.Println("right", right)
}
