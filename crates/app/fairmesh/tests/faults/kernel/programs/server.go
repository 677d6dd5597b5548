// Responds to each request with its path, a colon, its body, and as many bytes as the path says.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func main() {
	http.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		sent, _ := io.ReadAll(request.Body)
		path := request.URL.Path[1:]
		size, _ := strconv.Atoi(strings.Split(path, "-")[1])
		text := path + ":" + string(sent) + strings.Repeat("x", size)
		response.Header().Set("content-length", strconv.Itoa(len(text)))
		io.WriteString(response, text)
	})
	fmt.Println(http.ListenAndServe(":"+os.Args[1], nil))
}
