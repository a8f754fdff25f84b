// SPDX-License-Identifier: Apache-2.0

import java.util.stream.Collectors;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.cloud.client.discovery.DiscoveryClient;
import org.springframework.context.annotation.Bean;
import org.springframework.web.servlet.function.RouterFunction;
import org.springframework.web.servlet.function.RouterFunctions;
import org.springframework.web.servlet.function.ServerResponse;

/**
 * An application of Spring Cloud that registers itself, as one that nobody has rewritten for Usher. It answers
 * /slow?d=250ms after that time, and / at once; /end ends it without a word, when what is under way has been answered.
 * With the argument --call=ORDERS it is a caller instead: it writes the instances that the registry's client would choose from,
 * again when they change, and ends with its standard input.
 */
@SpringBootConfiguration(proxyBeanMethods = false)
@EnableAutoConfiguration
public class Orders {
    public static void main(String[] args) throws Exception {
        var context = SpringApplication.run(Orders.class, args);
        String called = context.getEnvironment().getProperty("call");
        if (called != null) {
            new Thread(Orders::endWithInput).start();
            call(context.getBean(DiscoveryClient.class), called);
        }
    }

    @Bean
    RouterFunction<ServerResponse> answers() {
        return RouterFunctions.route()
                .GET("/slow", request -> {
                    String time = request.param("d").orElse("0ms");
                    Thread.sleep(time.endsWith("ms") ? Long.parseLong(time.substring(0, time.length() - 2))
                            : (long) (1000 * Double.parseDouble(time.substring(0, time.length() - 1))));
                    return ServerResponse.ok().build();
                })
                .GET("/end", request -> {
                    Thread.sleep(2000);
                    Runtime.getRuntime().halt(1);
                    return null;
                })
                .GET("/", request -> ServerResponse.ok().build())
                .build();
    }

    private static void endWithInput() {
        try {
            while (System.in.read() >= 0) {
                // Only the end matters.
            }
        } catch (java.io.IOException e) {
            // That is the end, too.
        }
        Runtime.getRuntime().halt(0);
    }

    private static void call(DiscoveryClient client, String service) throws Exception {
        for (String before = null;; Thread.sleep(50)) {
            String now = before;
            try {
                now = client.getInstances(service).stream()
                        .map(i -> " " + i.getHost() + ":" + i.getPort())
                        .sorted().collect(Collectors.joining());
            } catch (RuntimeException e) {
                // The registry does not answer, and the client keeps nothing: this caller keeps what it knew.
            }
            if (now != null && !now.equals(before)) {
                System.out.println("instances" + now);
                System.out.flush();
                before = now;
            }
        }
    }
}
