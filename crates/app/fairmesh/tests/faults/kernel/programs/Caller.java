// Calls each path several times on kept connections, and says how many responses were the right ones.
// Run with jdk.net.hosts.file, so that the host leads to a virtual address.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

class Caller {
    public static void main(String[] paths) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        int right = 0;
        for (int round = 0; round < 10; round++) {
            for (String path : paths) {
                String sent = round % 2 == 0 ? "" : "b".repeat(round * 20);
                HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://raw.shop/" + path));
                HttpRequest built = (sent.isEmpty() ? request : request.POST(BodyPublishers.ofString(sent))).build();
                var response = client.send(built, BodyHandlers.ofString());
                String expected = path + ":" + sent + "x".repeat(Integer.parseInt(path.split("-")[1]));
                if (response.statusCode() == 200 && response.body().equals(expected)) right++;
            }
        }
        System.out.println("right " + right);
    }
}
